"""What must hold for every family on any tree: exclusion, equal rewards, scale; and what makes `tree` right."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from credit_trees import FAMILIES, flat, policy, prompt, scored, tool, uneven, without
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_trees import trees

from arpo.credit import Credit, assign, assign_all, credit_settings
from arpo.credit.base import _RULES
from arpo.credit.rloo import leave_one_out
from arpo.credit.scored import Scored
from arpo.credit.tree import splitting_weights
from arpo.tree import Finish, Outcome, RolloutTree

NO_STD = ("tree", "rloo", "dr_grpo", "treepo", "treerl")
"""Families in the units of the reward; the others divide by a standard deviation."""
every_family = pytest.mark.parametrize("name", FAMILIES)
QUARTERS = st.integers(-8, 8).map(lambda i: i / 4)


@st.composite
def rewarded(draw) -> RolloutTree:
    """A random tree with rewards of few values, so that ties occur, some of them missing."""
    tree = draw(trees(scored=False, max_turns=4))
    return tree.with_outcomes([Outcome(draw(st.none() | QUARTERS)) for _ in tree.leaves])


@st.composite
def partly_rewarded(draw) -> RolloutTree:
    """The same with at least one reward and at least one missing."""
    tree = draw(trees(scored=False, max_turns=4).filter(lambda tree: len(tree.leaves) > 1))
    count = len(tree.leaves)
    dropped = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    return tree.with_outcomes([Outcome(None if m in dropped else draw(QUARTERS)) for m in range(count)])


def exact(name: str, **options: object):
    return credit_settings(name, **(({} if name in NO_STD else {"epsilon": 0.0}) | options))


def same(name: str, a: Credit, b: Credit) -> None:
    for mine, theirs in zip((*a.values, *a.weights), (*b.values, *b.weights), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert a.per_token == b.per_token


def kept_only(credit: Credit) -> Credit:
    kept = [m for m, value in enumerate(credit.values) if value is not None]
    return replace(credit, values=tuple(credit.values[m] for m in kept), weights=tuple(credit.weights[m] for m in kept))


def test_every_family_is_covered_here() -> None:
    assert sorted(FAMILIES) == sorted(_RULES)


@settings(max_examples=40, deadline=None)
@given(tree=partly_rewarded(), other=rewarded(), average=st.booleans())
def test_a_tree_with_an_excluded_leaf_gives_exactly_what_it_gives_without(
    tree: RolloutTree, other: RolloutTree, average: bool
) -> None:
    dropped = [m for m, reward in enumerate(tree.rewards) if reward is None]
    for name in FAMILIES:
        chosen = credit_settings(name, **({} if name == "tree" else {"shared_prefix_average": average}))
        whole = assign_all([tree, other], chosen)
        pruned = assign_all([without(tree, dropped), other], chosen)
        same(name, kept_only(whole[0]), pruned[0])
        same(name, whole[1], pruned[1])
        assert [m for m, value in enumerate(whole[0].values) if value is None] == dropped, name
        assert [m for m, weight in enumerate(whole[0].weights) if weight is None] == dropped, name


@settings(max_examples=30, deadline=None)
@given(tree=rewarded(), reward=st.floats(-3, 3))
def test_equal_rewards_give_exactly_nothing(tree: RolloutTree, reward: float) -> None:
    equal = tree.with_outcomes([Outcome(None if r is None else reward) for r in tree.rewards])
    for name in FAMILIES:
        credit = assign(equal, credit_settings(name))
        assert not any(value.any() for value in credit.values if value is not None), name
        assert not credit.has_signal, name


@settings(max_examples=30, deadline=None)
@given(tree=rewarded(), factor=st.sampled_from([0.5, 2.0, 3.0]), shift=st.integers(-3, 3))
def test_scale_and_shift_of_the_rewards(tree: RolloutTree, factor: float, shift: int) -> None:
    moved = tree.with_outcomes([Outcome(None if r is None else factor * r + shift) for r in tree.rewards])
    for name in FAMILIES:
        expected = factor if name in NO_STD else 1.0
        before, after = kept_only(assign(tree, exact(name))), kept_only(assign(moved, exact(name)))
        for old, new in zip(before.values, after.values, strict=True):
            np.testing.assert_allclose(new, expected * old, rtol=1e-9, atol=1e-9, err_msg=name)
        for old, new in zip(before.weights, after.weights, strict=True):
            np.testing.assert_array_equal(new, old, err_msg=name)


@settings(max_examples=30, deadline=None)
@given(tree=rewarded())
def test_shapes_and_what_the_policy_did_not_sample(tree: RolloutTree) -> None:
    for name in FAMILIES:
        credit = assign(tree, credit_settings(name))
        assert credit.per_token == (name in ("aepo", "reinforce++"))
        for path, value, weight in zip(tree.paths(), credit.values, credit.weights, strict=True):
            if value is None or weight is None:
                assert value is weight is None
                continue
            sampled = np.array([tree.segments[node].is_policy for node in path.nodes])
            assert ((weight > 0) == sampled).all(), name
            assert value.dtype == weight.dtype == np.float64
            assert value.shape == ((len(path),) if credit.per_token else (len(path.nodes),))
            assert np.isfinite(value).all(), name
            assert not value[~path.policy_T if credit.per_token else ~sampled].any(), name


@every_family
def test_degenerate_groups(name: str) -> None:
    chosen = credit_settings(name)
    assert assign(uneven([None] * 4), chosen).values == (None,) * 4
    assert not assign(uneven([None] * 4), chosen).has_signal
    assert not assign(uneven([None, 0.7, None, None]), chosen).has_signal
    assert not assign(flat([0.7]), chosen).has_signal
    assert not assign(flat([0.1] * 3), chosen).has_signal  # the mean of these is not 0.1: rounding is no signal
    assert not assign(uneven([1.1, 1.1, None, 1.1]), chosen).has_signal
    assert assign(uneven([4.0, 0.0, 1.0, 3.0]), chosen).has_signal
    assert assign_all([], chosen) == []
    lonely = scored((prompt(),), (0,), [1.0])
    assert [value.any() for value in assign(lonely, chosen).values] == [False]


@every_family
def test_a_leaf_whose_segment_is_empty(name: str) -> None:
    failed = (prompt(), policy(0, finish=Finish.CALL), tool(1), policy(2, 0, Finish.ERROR), policy(2), policy(0))
    same(
        name,
        kept_only(assign(scored(failed, (3, 4, 5), [None, 1.0, 0.0]), credit_settings(name))),
        assign(without(scored(failed, (3, 4, 5), [None, 1.0, 0.0]), [0]), credit_settings(name)),
    )
    spoken = (*failed[:3], policy(2, 0), policy(2), policy(0))
    credit = assign(scored(spoken, (3, 4, 5), [1.0, 0.0, 0.0]), credit_settings(name))
    assert credit.has_signal
    assert all(np.isfinite(value).all() for value in credit.values if value is not None)


@every_family
def test_forks_do_not_matter_where_there_are_none(name: str) -> None:
    """On independent trajectories all tree families are their flat forms."""
    rewards = [1.0, 0.0, 0.25, 0.25]
    mean, std = 0.375, math.sqrt(np.var(rewards))
    difference = np.array(rewards) - mean
    alone = {"rloo": 4 / 3, "tree": 4 / 3, "dr_grpo": 1, "treepo": 1, "treerl": 8 / 3, "gigpo": 2 / std}
    expected = difference * alone.get(name, 1 / std)
    got = [value[-1] for value in assign(flat(rewards), exact(name)).values]
    assert got == pytest.approx(expected)


@given(rewards=st.lists(st.none() | QUARTERS, min_size=1, max_size=6))
def test_rloo_compares_with_the_mean_of_the_others(rewards: list[float | None]) -> None:
    kept = [r for r in rewards if r is not None]
    for reward, got in zip(rewards, leave_one_out(Scored.of(flat(rewards))), strict=True):
        if reward is None:
            assert math.isnan(got)
        else:
            others = (sum(kept) - reward) / (len(kept) - 1) if len(kept) > 1 else reward
            assert got == pytest.approx(reward - others, abs=1e-12)


@given(rewards=st.lists(QUARTERS, min_size=1, max_size=6))
def test_tree_without_forks_is_rloo_with_weights_one_over_n(rewards: list[float]) -> None:
    tree = flat(rewards)
    ours, theirs = assign(tree, credit_settings("tree")), assign(tree, credit_settings("rloo"))
    np.testing.assert_allclose(ours.values, theirs.values, atol=1e-12)
    np.testing.assert_allclose(ours.weights, np.array(theirs.weights) / len(rewards))


@settings(max_examples=50, deadline=None)
@given(tree=rewarded())
def test_weights_of_tree_sum_to_one_at_every_depth_and_carry_the_values(tree: RolloutTree) -> None:
    view = Scored.of(tree)
    assume(view.kept_M.any())
    weight_S, value_S = splitting_weights(view, 1 / max(len(view.children[0]), 1)), view.child_mean(view.reward_M)
    depth = max(len(path) for path in view.paths)
    for level in range(depth):
        # a trajectory that ended goes on standing for itself
        cut = {path[min(level, len(path) - 1)] for path, kept in zip(view.paths, view.kept_M, strict=True) if kept}
        assert weight_S[list(cut)].sum() == pytest.approx(1)
        assert (weight_S * value_S)[list(cut)].sum() == pytest.approx(value_S[0])
    for node, kids in enumerate(view.children):
        if kids:
            assert (weight_S * value_S)[list(kids)].sum() == pytest.approx(weight_S[node] * value_S[node])


@settings(max_examples=50, deadline=None)
@given(tree=rewarded())
def test_tree_is_its_definition(tree: RolloutTree) -> None:
    """Leave-subtree-out written out, and copies that together weigh what the node weighs."""
    view, credit = Scored.of(tree), assign(tree, credit_settings("tree"))
    weight_S, value_S = splitting_weights(view, 1 / max(len(view.children[0]), 1)), view.child_mean(view.reward_M)
    total_S = np.zeros(len(weight_S))
    for path, value, weight in zip(view.paths, credit.values, credit.weights, strict=True):
        if value is None or weight is None:
            continue
        np.add.at(total_S, list(path), weight)
        for node, got in zip(path, value, strict=True):
            pairs = zip(view.paths, view.tree.leaves, view.reward_M, view.kept_M, strict=True)
            outside = [(weight_S[leaf], r) for other, leaf, r, kept in pairs if kept and node not in other]
            if not tree.segments[node].is_policy or not outside:
                assert got == 0
            else:
                baseline = sum(w * r for w, r in outside) / sum(w for w, _ in outside)
                assert got == pytest.approx(value_S[node] - baseline, abs=1e-9)
    for node, segment in enumerate(tree.segments):
        assert total_S[node] == pytest.approx(weight_S[node] if segment.is_policy else 0)


# A task of two decisions whose gradient is known: a = 1 with probability p, then b = 1 with probability q[a]; the
# reward is R[a][b]. Two roots; a root that chose a = 1 forks, one that chose 0 does not: a predictable, uneven rule.
P, Q, R = 0.3, (0.6, 0.2), ((0.2, 1.0), (-0.5, 2.0))


def root_outcomes() -> list[tuple[float, int, tuple[int, ...]]]:
    """(probability, a, the b's below it) of one root."""
    found = []
    for a in (0, 1):
        for bs in itertools.product((0, 1), repeat=2 if a else 1):
            chance = (P if a else 1 - P) * math.prod(Q[a] if b else 1 - Q[a] for b in bs)
            found.append((chance, a, bs))
    return found


def toy(outcomes) -> tuple[RolloutTree, dict[int, tuple[int, float]]]:
    """The tree, and for each policy node (which parameter, d ln pi / d that parameter); parameters are logits."""
    segments, leaves, rewards, slopes = [prompt()], [], [], {}
    for _, a, bs in outcomes:
        segments += [policy(0, 1, Finish.CALL), tool(len(segments))]
        state = len(segments) - 1
        slopes[state - 1] = (0, a - P)
        for b in bs:
            segments.append(policy(state, 1))
            leaves.append(len(segments) - 1)
            rewards.append(R[a][b])
            slopes[leaves[-1]] = (1 + a, b - Q[a])
    return scored(segments, leaves, rewards).validate(), slopes


def expected_gradient(name: str) -> np.ndarray:
    """Mean over all outcomes of two roots of the sum over copies of weight * value * d ln pi."""
    total = np.zeros(3)
    for outcomes in itertools.product(root_outcomes(), repeat=2):
        tree, slopes = toy(outcomes)
        credit = assign(tree, exact(name))
        for leaf, value, weight in zip(tree.leaves, credit.values, credit.weights, strict=True):
            for node, v, w in zip(tree.ancestry(leaf), value, weight, strict=True):
                parameter, slope = slopes.get(node, (0, 0.0))
                total[parameter] += math.prod(chance for chance, _, _ in outcomes) * w * v * slope
    return total


def true_gradient() -> np.ndarray:
    mean = [Q[a] * R[a][1] + (1 - Q[a]) * R[a][0] for a in (0, 1)]
    gain = [Q[a] * (1 - Q[a]) * (R[a][1] - R[a][0]) for a in (0, 1)]
    return np.array([P * (1 - P) * (mean[1] - mean[0]), (1 - P) * gain[0], P * gain[1]])


def off_direction(gradient: np.ndarray) -> float:
    true = true_gradient()
    cosine = gradient @ true / np.linalg.norm(gradient) / np.linalg.norm(true)
    return math.sqrt(max(0.0, 1 - cosine**2))


def test_tree_is_unbiased_under_uneven_forks_and_flat_counting_is_not() -> None:
    np.testing.assert_allclose(expected_gradient("tree"), true_gradient(), atol=1e-14)
    for name in ("rloo", "dr_grpo", "soft"):
        assert off_direction(expected_gradient(name)) > 0.05
