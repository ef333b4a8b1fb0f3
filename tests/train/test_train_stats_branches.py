"""Metrics of branches and of shared calls, computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_trees import call, segment, small_tree, trees

from arpo.train.stats import busiest_share, rollout_stats
from arpo.tree import Decision, Finish, RolloutTree, Source


def decided(node: int, opened: int, **options) -> Decision:
    return Decision(node, "search", 1, 0.3, 0.5, 0.2, 0.54, opened, opened, "", **options)


def forest(shared: bool = False) -> RolloutTree:
    """Two roots. The first branches in three after its result; the second branch calls again and branches in two."""
    segments = (
        segment([1], Source.PROMPT),
        segment([2], Source.POLICY, 0, finish=Finish.CALL),
        segment([3], Source.TOOL, 1, event=call(latency=0.5)),
        segment([4], Source.POLICY, 2),
        segment([5], Source.POLICY, 2, finish=Finish.CALL),
        segment([6], Source.TOOL, 4, event=call(latency=9.0, cached=True, shared=shared)),
        segment([7], Source.POLICY, 5),
        segment([8], Source.POLICY, 2),
        segment([9], Source.POLICY, 5),
        segment([10], Source.POLICY, 0),
    )
    return RolloutTree("forest", segments, (3, 9, 6, 7, 8), (decided(2, 2), decided(5, 1)))


def test_a_branching_point_belongs_to_the_trajectory_that_was_there_first() -> None:
    grown = forest().validate()
    assert busiest_share(grown) == pytest.approx(2 / 3)
    row = rollout_stats([grown, small_tree(), replace(small_tree(), decisions=())])
    assert row["arpo/busiest_share"] == pytest.approx((2 / 3 + 1) / 2), "groups without branches say nothing"


def test_one_trajectory_may_own_all_branches() -> None:
    one = replace(forest(), decisions=(decided(2, 2),))
    assert busiest_share(one) == 1.0
    assert busiest_share(replace(one, decisions=(decided(2, 0),))) is None
    assert rollout_stats([replace(one, decisions=())])["arpo/busiest_share"] == 0.0


def test_undecided_verdicts_are_counted() -> None:
    tree = replace(forest(), decisions=(decided(2, 2, undecided=True), decided(5, 1)))
    assert rollout_stats([tree])["arpo/undecided_share"] == 0.5
    assert rollout_stats([forest()])["arpo/undecided_share"] == 0.0


def test_a_shared_call_is_requested_and_not_executed() -> None:
    row = rollout_stats([forest(shared=True)])
    assert (row["tools/requested"], row["tools/executed"], row["tools/shared"]) == (2.0, 1.0, 1.0)
    assert (row["tools/search/requested"], row["tools/search/calls"]) == (2.0, 1.0)
    assert row["tools/search/latency_p95"] == 0.5, "an answer that was there already has no latency of its own"
    assert row["tools/search/cache_hit"] == 0.0
    assert row["tools/calls_per_rollout"] == pytest.approx(1 / 5)
    unshared = rollout_stats([forest()])
    assert (unshared["tools/requested"], unshared["tools/executed"], unshared["tools/shared"]) == (2.0, 2.0, 0.0)
    assert unshared["tools/search/cache_hit"] == 0.5


@given(st.lists(trees(), max_size=3))
def test_counts_agree_with_the_trees(found: list[RolloutTree]) -> None:
    row = rollout_stats(found)
    assert row["tools/requested"] == sum(tree.requested_calls for tree in found)
    assert row["tools/executed"] + row["tools/shared"] == row["tools/requested"]
    assert row["tools/executed"] == sum(value for name, value in row.items() if name.endswith("/calls"))
    assert 0 <= row["arpo/busiest_share"] <= 1
    for tree in found:
        share = busiest_share(tree)
        assert share is None or share >= 1 / sum(d.opened for d in tree.decisions)
