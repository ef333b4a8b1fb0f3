"""Rows and micro-batches against the trees they come from."""

from collections.abc import Callable

import numpy as np
import pytest

from arpo.credit import assign
from arpo.credit.settings import credit_settings
from arpo.learn.batch import collate, rows_of, split
from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

Maker = Callable[..., RolloutTree]


def test_a_row_holds_the_policy_tokens_of_its_trajectory(forked: Maker) -> None:
    tree = forked()
    rows = rows_of(tree, assign(tree, credit_settings(type="hard", epsilon=0.0)))
    assert [len(row) for row in rows] == [11, 13, 11]
    first = rows[0]
    assert first.position_p.tolist() == [3, 4, 5, 6, 9, 10, 11]
    logprobs = np.concatenate([tree.segments[1].logprobs, tree.segments[3].logprobs])
    np.testing.assert_array_equal(first.logp_p, logprobs)
    shared, own = np.sqrt(2) / 2 - np.sqrt(0.5) / 2, np.sqrt(2)
    np.testing.assert_allclose(first.advantage_p, [shared] * 4 + [own] * 3)
    np.testing.assert_array_equal(first.weight_p, np.ones(7))


def test_a_row_ends_with_its_last_policy_token() -> None:
    zeros = np.zeros(2, np.float32)
    segments = (
        Segment(np.array([1, 2], np.int32), Source.PROMPT),
        Segment(np.array([3, 4], np.int32), Source.POLICY, 0, zeros, zeros, Finish.CALL, 0),
        Segment(np.array([5, 6, 7], np.int32), Source.TOOL, 1, event=ToolEvent("search", "{}", "ok")),
        Segment(np.array([8], np.int32), Source.TOOL, 0, event=ToolEvent("search", "{}", "ok")),
    )
    tree = RolloutTree("t", segments, (2, 3), outcomes=(Outcome(1.0), Outcome(0.0)))
    rows = rows_of(tree, assign(tree, credit_settings()))
    assert [row.token_T.tolist() for row in rows] == [[1, 2, 3, 4]]  # and a trajectory without a policy token is none


def test_a_policy_token_that_nothing_predicts_is_refused() -> None:
    one = np.zeros(1, np.float32)
    segments = (
        Segment(np.empty(0, np.int32), Source.PROMPT),
        Segment(np.array([3], np.int32), Source.POLICY, 0, one, one, Finish.STOP, 0),
        Segment(np.array([4], np.int32), Source.POLICY, 0, one, one, Finish.STOP, 0),
    )
    tree = RolloutTree("empty-prompt", segments, (1, 2), outcomes=(Outcome(1.0), Outcome(0.0)))
    with pytest.raises(ValueError, match="tree empty-prompt: a policy token stands first"):
        rows_of(tree, assign(tree, credit_settings()))


def test_excluded_trajectories_have_no_row(forked: Maker) -> None:
    tree = forked((1.0, None, 0.0))
    rows = rows_of(tree, assign(tree, credit_settings()))
    assert [row.token_T.tolist() for row in rows] == [tree.path(leaf).token_T.tolist() for leaf in (3, 5)]


@pytest.mark.parametrize("micro_tokens", [1, 12, 26, 30, 60, 10_000])
def test_every_row_is_in_one_micro_batch_within_the_budget(forked: Maker, micro_tokens: int) -> None:
    trees = [forked(seed=seed) for seed in range(3)]
    rows = [row for tree in trees for row in rows_of(tree, assign(tree, credit_settings()))]
    batches = list(split(rows, micro_tokens))
    assert sorted(i for batch in batches for i in batch) == list(range(9))
    for batch in batches:
        padded = len(batch) * max(len(rows[i]) for i in batch)
        assert padded <= micro_tokens or len(batch) == 1


def test_collate_points_at_the_state_before_each_label(forked: Maker) -> None:
    tree = forked()
    rows = rows_of(tree, assign(tree, credit_settings()))
    batch = collate(rows, [row.weight_p for row in rows])
    assert batch.input_BT.shape == (3, 13)
    for row, column, label in zip(batch.row_P, batch.column_P, batch.label_P, strict=True):
        assert rows[row].token_T[column + 1] == label
        assert batch.input_BT[row, column] == rows[row].token_T[column]
    assert len(batch.label_P) == 7 + 9 + 9
