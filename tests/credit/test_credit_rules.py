"""Advantages worked out by hand, and what a missing reward does to them."""

import math

import numpy as np
import pytest
from credit_trees import forked, policy

from arpo.credit import Credit, assign, get, register
from arpo.credit.scored import z_scores
from arpo.credit.settings import credit_settings
from arpo.credit.soft import soft
from arpo.errors import ConfigError
from arpo.tree import Outcome, RolloutTree


def listed(credit: Credit) -> tuple[list[list[float] | None], list[list[float] | None]]:
    def plain(arrays: tuple[np.ndarray | None, ...]) -> list[list[float] | None]:
        return [None if a is None else a.tolist() for a in arrays]

    return plain(credit.values), plain(credit.weights)


@pytest.mark.parametrize("name", ["grpo", "soft"])
def test_every_copy_of_a_shared_token_carries_its_own_trajectory(name: str) -> None:
    # rewards 1, 0, 0: mean 1/3, population std sqrt(2)/3, so A = sqrt 2, -1/sqrt 2, -1/sqrt 2
    values, weights = listed(assign(forked([1.0, 0.0, 0.0]), credit_settings(name, epsilon=0.0)))
    high, low = math.sqrt(2), -math.sqrt(0.5)
    for got, expected in zip(values, [[0, high, 0, high], [0, low, 0, low], [0, low]], strict=True):
        assert got == pytest.approx(expected, abs=1e-12)
    assert weights == [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1]]


def test_hard_gives_shared_tokens_the_mean_over_the_trajectories_through_them() -> None:
    values, weights = listed(assign(forked([1.0, 0.0, 0.0]), credit_settings("hard", epsilon=0.0)))
    high, low = math.sqrt(2), -math.sqrt(0.5)
    shared = (high + low) / 2
    for got, expected in zip(values, [[0, shared, 0, high], [0, shared, 0, low], [0, low]], strict=True):
        assert got == pytest.approx(expected, abs=1e-12)
    assert weights == [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1]]


def test_a_missing_reward_leaves_baseline_loss_mean_and_multiplicity() -> None:
    settings = credit_settings(type="hard", epsilon=0.0, shared_prefix_average=True)
    values, weights = listed(assign(forked([3.0, None, 1.0]), settings))
    # over {3, 1}: A = +1, -1; the shared node has one kept trajectory through it, so it keeps A = 1 and weight 1
    assert values == [[0, 1, 0, 1], None, [0, -1]]
    assert weights == [[0, 1, 0, 1], None, [0, 1]]


@pytest.mark.parametrize("name", ["grpo", "soft", "hard"])
def test_shared_prefix_average_divides_each_copy_by_its_multiplicity(name: str) -> None:
    settings = credit_settings(type=name, shared_prefix_average=True)
    _, weights = listed(assign(forked([1.0, 0.0, 0.0]), settings))
    assert weights == [[0, 0.5, 0, 1], [0, 0.5, 0, 1], [0, 1]]


def test_soft_and_hard_agree_in_the_sum_over_copies() -> None:
    tree = forked([0.3, 1.1, -1.0])
    both = [assign(tree, credit_settings(name)) for name in ("soft", "hard")]
    for node in range(6):
        totals = []
        for credit in both:
            paths = [tree.ancestry(leaf) for leaf in tree.leaves]
            totals.append(sum(v[p.index(node)] for v, p in zip(credit.values, paths, strict=True) if node in p))
        assert totals[0] == pytest.approx(totals[1], abs=1e-12)


def test_z_scores_by_hand() -> None:
    assert z_scores(np.array([0.0, 1.0, 2.0, 3.0]), 0.0) == pytest.approx(np.array([-3, -1, 1, 3]) / math.sqrt(5))
    assert z_scores(np.array([1.0, 0.0]), 0.5) == pytest.approx([0.5, -0.5])  # std 0.5, plus epsilon 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1] * 3, [0.0] * 3),  # 0.1 + 0.1 + 0.1 is not 0.3: rounding must not leak in as an advantage
        ([2.0], [0.0]),
        ([math.nan, 2.0], [math.nan, 0.0]),
        ([math.nan, math.nan], [math.nan, math.nan]),
        ([], []),
    ],
)
def test_groups_without_variance(values: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(z_scores(np.array(values), 0.0), np.array(expected))


@pytest.mark.parametrize("name", ["grpo", "soft", "hard"])
def test_signal(name: str) -> None:
    settings = credit_settings(type=name)
    assert assign(forked([1.0, 0.0, 0.0]), settings).has_signal
    assert not assign(forked([0.7, 0.7, 0.7]), settings).has_signal
    assert not assign(forked([None, None, 1.0]), settings).has_signal
    empty = assign(forked([None, None, None]), settings)
    assert not empty.has_signal
    assert empty.values == (None, None, None)


def test_an_unscored_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="tree t: credit needs one outcome per trajectory, it has 0"):
        assign(forked([1.0, 0.0, 0.0]).with_outcomes(()), credit_settings())


def test_names() -> None:
    with pytest.raises(ConfigError, match=r"'sft' is unknown; known: .*grpo, hard, "):
        get("sft")
    with pytest.raises(ValueError, match="'soft' is registered twice"):
        register("soft")(soft)


def test_a_top_up_weighs_like_a_first_root_and_is_no_baseline_of_theirs() -> None:
    # first roots: 1 (forks into 3 and 4) and 5; 6 fills the group up. w = 1/2 each, 1/4 below the fork.
    base = forked([1.0, 0.0, 0.0])
    tree = RolloutTree(
        "t",
        (*base.segments, policy(0)),
        (*base.leaves, 6),
        outcomes=tuple(Outcome(r) for r in (1.0, 0.0, 0.0, 1.0)),
        top_ups=1,
    ).validate(4)
    values, weights = listed(assign(tree, credit_settings("tree")))
    # V_1 = 1/2, V_5 = 0, V_6 = 1. Node 1 against 5: 1/2. Leaf 3 against 4 and 5: B = 0. Leaf 5 against 1: -1/2.
    # The top-up against both: B = (1/2 + 0) / 2 = 1/4, so 3/4.
    for got, expected in zip(values, [[0, 0.5, 0, 1], [0, 0.5, 0, -1 / 3], [0, -0.5], [0, 0.75]], strict=True):
        assert got == pytest.approx(expected, abs=1e-12)
    assert weights == [[0, 0.25, 0, 0.25], [0, 0.25, 0, 0.25], [0, 0.5], [0, 0.5]]
