"""A tree's leaves as verl's rows: what stands in them, and that verl's averages make our loss of what it is handed."""

import numpy as np
import pytest
from credit_trees import FAMILIES, flat, forked, uneven, without
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trees import trees

from arpo.credit import assign_all, credit_settings
from arpo.learn.losses.aggregation import coefficients
from arpo.learn.settings import ClipLoss
from arpo.tree import RolloutTree
from arpo.verl.leaves import TokenCredit, handed, leaves_of, token_credit

AGGREGATIONS = ("token_mean", "sequence_mean", "constant", "group_sum")


@given(trees(scored=True))
@settings(max_examples=60, deadline=None)
def test_a_leaf_is_its_path(tree: RolloutTree) -> None:
    rewarded = [index for index, reward in enumerate(tree.rewards) if reward is not None]
    leaves = leaves_of(tree)
    assert [leaf.index for leaf in leaves] == rewarded
    for leaf in leaves:
        path = tree.path(tree.leaves[leaf.index])
        start = len(tree.segments[0])
        assert leaf.prompt_ids + leaf.response_ids == path.token_T.tolist()
        assert leaf.response_mask == path.policy_T[start:].astype(int).tolist()
        logprob_T = np.array(leaf.response_logprobs)
        assert (logprob_T[np.array(leaf.response_mask) == 0] == 0).all()
        assert leaf.reward_score == tree.rewards[leaf.index]
        fields = leaf.extra_fields()
        assert fields["min_global_steps"] <= fields["max_global_steps"]
        assert fields["reward_extra_info"] == tree.outcomes[leaf.index].parts


def test_turns_are_counted_through_a_branch() -> None:
    assert [leaf.num_turns for leaf in leaves_of(uneven((1, 0, 1, 0)))] == [6, 6, 4, 2]


def test_a_tree_without_outcomes_has_no_rows() -> None:
    with pytest.raises(ValueError, match="0 outcomes for 2"):
        leaves_of(RolloutTree("t", flat((1, 0)).segments, (1, 2)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_what_verl_averages_is_our_loss(family: str, aggregation: str) -> None:
    """Any term per token: the sum of A' x verl's coefficient x term is that of A x our coefficient x term."""
    loss = ClipLoss(aggregation=aggregation, length=50)
    group = [uneven((1, 0, None, 0.5)), forked((0, 1, 1)), flat((1, 1), 5)]
    credits = assign_all(group, credit_settings(family))
    rows: list[TokenCredit | None] = []
    places, counted, masks, terms = [], [], [], []
    draw = np.random.default_rng(0)
    for index, (tree, credit) in enumerate(zip(group, credits, strict=True)):
        per_leaf = token_credit(tree, credit)
        for leaf in leaves_of(tree):
            rows.append(per_leaf[leaf.index])
            places.append(index)
            counted.append(credit.has_signal)
            masks.append(np.array(leaf.response_mask))
    rows += [None, None]
    places, counted, masks = [*places, -1, -1], [*counted, False, False], [*masks, np.zeros(1), np.zeros(1)]
    terms = [draw.normal(size=len(mask)) for mask in masks]
    given_rows = handed(rows, places, masks, loss, counted=counted)

    real = [(row, term, place) for row, term, place, seen in zip(rows, terms, places, counted, strict=True) if seen]
    ours = coefficients([row.weight_T for row, _, _ in real if row], [place for _, _, place in real], loss)
    expected = sum((row.advantage_T * own * term).sum() for (row, term, _), own in zip(real, ours, strict=True) if row)
    assert verls(aggregation, given_rows, masks, terms) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert abs(expected) > 1e-6
    for row, mask in zip(given_rows, masks, strict=True):
        assert not row[mask == 0].any()


def verls(aggregation: str, rows: list[np.ndarray], masks: list[np.ndarray], terms: list[np.ndarray]) -> float:
    """verl's averages of advantage x term, written down from its documentation."""
    per_row = [float((row * term * mask).sum()) for row, term, mask in zip(rows, terms, masks, strict=True)]
    if aggregation == "token_mean":
        return sum(per_row) / sum(float(mask.sum()) for mask in masks)
    if aggregation == "sequence_mean":
        means = [total / max(float(mask.sum()), 1.0) for total, mask in zip(per_row, masks, strict=True)]
        return sum(means) / len(rows)
    return sum(per_row) / len(rows) / (50 if aggregation == "constant" else 1)


def test_a_lost_leaf_changes_nothing_for_the_others() -> None:
    loss, hard = ClipLoss(), credit_settings("hard")
    whole, rest = uneven((1, 0, None, 0.5)), without(uneven((1, 0, 0, 0.5)), [2])
    made = []
    for tree in (whole, rest):
        per_leaf = token_credit(tree, assign_all([tree], hard)[0])
        kept = [per_leaf[leaf.index] for leaf in leaves_of(tree)]
        masks = [np.array(leaf.response_mask) for leaf in leaves_of(tree)]
        made.append(handed(kept, [0] * len(kept), masks, loss))
    assert all(np.allclose(a, b) for a, b in zip(*made, strict=True))


@given(st.integers(0, 3))
def test_what_a_mask_leaves_out_weighs_nothing(place: int) -> None:
    row = TokenCredit(np.ones(4), np.ones(4))
    mask = np.arange(4) != place
    (only,) = handed([row], [0], [mask], ClipLoss())
    assert only[place] == 0
    assert np.allclose(only[mask], 1.0)
