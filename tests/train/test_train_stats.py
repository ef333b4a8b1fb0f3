"""One step's row, computed by hand from a tree of three trajectories that share a search."""

import math
from dataclasses import replace

import pytest
from random_trees import small_tree

from arpo.train.stats import has_signal, rollout_stats
from arpo.tree import Finish, Outcome, ToolEvent


def test_the_row_of_a_small_tree() -> None:
    row = rollout_stats([small_tree()])
    assert row["reward"] == pytest.approx((1.1 + 0.0 - 1.0) / 3)
    assert row["reward/accuracy/mean"] == 0.5
    assert row["reward/none_frac"] == 0.0
    assert row["frac_reward_zero_std"] == 0.0
    # Policy tokens: 2 + 1, 2 + 3 and 2; tool tokens count in no length.
    assert row["completions/mean_length"] == pytest.approx((3 + 5 + 2) / 3)
    assert row["tools/calls_per_rollout"] == pytest.approx(1 / 3)
    assert row["tools/search/calls"] == 1.0
    assert row["arpo/branches"] == 1.0
    assert row["arpo/branch_prob"] == pytest.approx(0.54)
    assert row["arpo/delta_entropy/search"] == pytest.approx(0.2)
    # 15 unique tokens; the trajectories have 3+2+4+1, 3+2+4+3 and 3+2.
    assert row["arpo/shared_token_frac"] == pytest.approx(1 - 15 / 27)
    assert all(math.isfinite(value) for value in row.values())


def test_a_lost_trajectory_counts_as_lost_and_in_no_reward() -> None:
    tree = small_tree()
    lost = tree.with_outcomes((*tree.outcomes[:2], Outcome(None)))
    row = rollout_stats([lost])
    assert row["reward"] == pytest.approx(0.55)
    assert row["reward/none_frac"] == pytest.approx(1 / 3)
    segments = list(tree.segments)
    event = ToolEvent("browser", "{}", "infra_error", executed=False)
    segments[5] = replace(segments[5], finish=Finish.ERROR, event=event)
    row = rollout_stats([replace(lost, segments=tuple(segments))])
    assert (row["tools/infra_errors"], row["tools/browser/infra_errors"]) == (1.0, 1.0)
    assert (row["tools/browser/calls"], row["tools/search/infra_errors"]) == (0.0, 0.0)


def test_a_group_without_differences_has_no_signal() -> None:
    tree = small_tree()
    assert has_signal(tree)
    assert not has_signal(tree.with_outcomes([Outcome(0.3)] * 3))
    assert not has_signal(tree.with_outcomes([Outcome(1.0), Outcome(None), Outcome(None)]))
    assert not has_signal(tree.with_outcomes([Outcome(None)] * 3))
