"""Every family against numbers worked out by hand, most of them on one uneven tree.

Its leaves 7, 8, 5, 9 have rewards 4, 0, 1, 3: mean 2, differences 2, -2, -1, 1, variance 10/4, s = sqrt(2.5).
"""

import math

import numpy as np
import pytest
from credit_trees import by_node, flat, forked, policy, prompt, scored, tool, uneven

from arpo.credit import Credit, assign, assign_all, credit_settings
from arpo.errors import ConfigError
from arpo.tree import Finish, RolloutTree

REWARDS = [4.0, 0.0, 1.0, 3.0]
PATHS = ((1, 3, 4, 7), (1, 3, 4, 8), (1, 3, 5), (9,))
S = math.sqrt(2.5)


def credit_of(name: str, tree: RolloutTree, **options: object) -> Credit:
    exact = {} if name in ("tree", "rloo", "dr_grpo", "treepo", "treerl") else {"epsilon": 0.0}
    return assign(tree, credit_settings(name, **(exact | options)))


def check(name: str, per_trajectory: list[dict[int, float]], **options: object) -> None:
    tree = uneven(REWARDS)
    for got, expected in zip(by_node(tree, credit_of(name, tree, **options)), per_trajectory, strict=True):
        assert got == pytest.approx(expected, abs=1e-12)


def own(*values: float) -> list[dict[int, float]]:
    """The same value on all nodes of a trajectory."""
    return [dict.fromkeys(path, value) for path, value in zip(PATHS, values, strict=True)]


def of_nodes(values: dict[int, float]) -> list[dict[int, float]]:
    """The same value on all copies of a node."""
    return [{node: values[node] for node in path} for path in PATHS]


@pytest.mark.parametrize("name", ["grpo", "soft"])
def test_grpo_and_soft(name: str) -> None:
    check(name, own(2 / S, -2 / S, -1 / S, 1 / S))


def test_hard() -> None:
    # node 4: mean of 2, -2; nodes 1 and 3: mean of 2, -2, -1
    check("hard", of_nodes({1: -1 / 3 / S, 3: -1 / 3 / S, 4: 0, 5: -1 / S, 7: 2 / S, 8: -2 / S, 9: 1 / S}))


def test_rloo() -> None:
    # 4 - (0 + 1 + 3)/3, 0 - (4 + 1 + 3)/3, 1 - (4 + 0 + 3)/3, 3 - (4 + 0 + 1)/3
    check("rloo", own(8 / 3, -8 / 3, -4 / 3, 4 / 3))


def test_dr_grpo() -> None:
    check("dr_grpo", own(2, -2, -1, 1))


def test_tree() -> None:
    # V: 4, 0 | node 4: 2 | 5: 1 | 3 and 1: (2 + 1)/2 | 9: 3 | prompt: (1.5 + 3)/2 = 2.25
    # w: 1/2 for 1, 3, 9 | 1/4 for 4, 5 | 1/8 for 7, 8
    # B of 7: (0/8 + 1/4 + 3/2) / (7/8) = 2          of 8: (4/8 + 1/4 + 3/2) / (7/8) = 18/7
    # B of 4: (1/4 + 3/2) / (3/4) = 7/3              of 5: (4/8 + 0/8 + 3/2) / (3/4) = 8/3
    # B of 1 and 3: 3                                of 9: (4/8 + 0/8 + 1/4) / (1/2) = 3/2
    check("tree", of_nodes({1: -1.5, 3: -1.5, 4: -1 / 3, 5: -5 / 3, 7: 2, 8: -18 / 7, 9: 1.5}))


def test_the_weights_of_tree_are_split_over_forks_and_then_over_copies() -> None:
    weights = [w.tolist() for w in credit_of("tree", uneven(REWARDS)).weights]
    # nodes on the path: 0, 1, tool 2, 3, 4, tool 6, leaf; node 1 has 3 copies, node 4 has 2
    long = [0, 1 / 6, 0, 1 / 6, 1 / 8, 0, 1 / 8]
    for got, expected in zip(weights, [long, long, [0, 1 / 6, 0, 1 / 6, 1 / 4], [0, 1 / 2]], strict=True):
        assert got == pytest.approx(expected, abs=1e-15)


def test_the_trunk_of_a_lone_root_gets_nothing_and_its_branches_compare() -> None:
    tree = forked([1.0, 0.0, None])  # the other root has no reward: all that is left is under node 1
    assert by_node(tree, credit_of("tree", tree)) == [{1: 0, 3: 1}, {1: 0, 4: -1}, None]
    alone = forked([1.0, None, None])
    assert by_node(alone, credit_of("tree", alone)) == [{1: 0, 3: 0}, None, None]


def test_tree_grpo() -> None:
    # in the tree of root 1: mean 5/3, differences 7/3, -5/3, -2/3, std sqrt(26)/3
    q = math.sqrt(26)
    check("tree_grpo", own(2 / S + 7 / q, -2 / S - 5 / q, -1 / S - 2 / q, 1 / S))


def test_treepo() -> None:
    # groups: all 4 (mean 2), the 3 under node 3 (mean 5/3), the 2 under tool 6 (mean 2)
    # leaf 7: (4*2 + 3*7/3 + 2*2)/9   leaf 8: (4*-2 + 3*-5/3 + 2*-2)/9   leaf 5: (4*-1 + 3*-2/3)/7   leaf 9: 1
    check("treepo", own(19 / 9, -17 / 9, -6 / 7, 1))


def test_treerl() -> None:
    # leave-one-out rewards 8/3, -8/3, -4/3, 4/3; means: node 4: 0, nodes 1 and 3: -4/9, the prompt: 0
    # against the last fork: 7 and 8 to node 4, 4 and 5 to node 3, 1 and 3 (one stretch) and 9 to the prompt
    early = (-4 / 9 - 4 / 9) / math.sqrt(3)
    nodes = {1: early, 3: early, 4: (0 + 4 / 9) / math.sqrt(2), 5: -4 / 3 - 8 / 9}
    check("treerl", of_nodes(nodes | {7: 8 / 3 + 8 / 3, 8: -8 / 3 - 8 / 3, 9: 4 / 3 + 4 / 3}))


def test_at2po() -> None:
    # node 4: (2 - 2)/2; nodes 3 and 1: (0 - 1)/2, where hard has (2 - 2 - 1)/3
    check("at2po", of_nodes({1: -0.5 / S, 3: -0.5 / S, 4: 0, 5: -1 / S, 7: 2 / S, 8: -2 / S, 9: 1 / S}))


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_gigpo(weight: float) -> None:
    # means: roots 5/3 and 3, branches 2 and 1, branches 4 and 0: of two, z is +1 and -1; node 3 had no alternative
    step = {1: -1, 9: 1, 3: 0, 4: 1, 5: -1, 7: 1, 8: -1}
    groups = (2 / S, -2 / S, -1 / S, 1 / S)
    expected = [{n: a + weight * step[n] for n in path} for path, a in zip(PATHS, groups, strict=True)]
    check("gigpo", expected, step_weight=weight)


def test_gigpo_a_turn_that_was_cut_without_a_fork_stays_one_step() -> None:
    # tool 2 forks into 3 and 4; 3 was cut for the window and goes on in 5, and then after a tool in 7
    segments = (
        *(prompt(), policy(0, finish=Finish.CALL), tool(1), policy(2, finish=Finish.WINDOW), policy(2)),
        *(policy(3, finish=Finish.CALL), tool(5), policy(6)),
    )
    tree = scored(segments, (7, 4), [1.0, 0.0]).validate(2)
    assert by_node(tree, credit_of("gigpo", tree)) == [{1: 1, 3: 2, 5: 2, 7: 1}, {1: -1, 4: -2}]


def test_aepo_scales_tokens_by_their_entropy() -> None:
    # trajectories of two tokens, entropies 0, 2 and 2, 4: mean 2, variance 2; advantages +1 and -1
    segments = (prompt(), policy(0, entropies=[0, 2]), policy(0, entropies=[2, 4]))
    credit = credit_of("aepo", scored(segments, (1, 2), [1.0, 0.0]), entropy_scale=0.2)
    d = 0.2 * math.sqrt(2)
    assert credit.per_token
    assert credit.values[0] == pytest.approx([0, 0, 1 - d, 1])  # two tokens of the prompt first
    assert credit.values[1] == pytest.approx([0, 0, -1, -1 - d])
    assert [w.tolist() for w in credit.weights] == [[0, 1], [0, 1]]  # weights stay per node
    # far below the mean the factor stops at 0: 1 + 2 * -sqrt(2) would turn the sign
    strong = credit_of("aepo", scored(segments, (1, 2), [1.0, 0.0]), entropy_scale=2.0)
    assert strong.values[0] == pytest.approx([0, 0, 0, 1])


@pytest.mark.parametrize(("average", "tokens"), [(False, [1, 1, 4, 1, 4]), (True, [1, 4, 1, 4])])
def test_aepo_counts_shared_entropies_as_the_loss_counts_their_tokens(average: bool, tokens: list[float]) -> None:
    # one token of entropy 1 in two trajectories, then 4 and 1 on their own; 4 in the other root
    shared = (prompt(), policy(0, 1, Finish.CALL, [1]), tool(1))
    tree = scored(
        (*shared, policy(2, 1, entropies=[4]), policy(2, 1, entropies=[1]), policy(0, 1, entropies=[4])),
        *((3, 4, 5), [1.0, 0.0, 0.0]),
    )
    z_1, z_4 = (np.array([1, 4]) - np.mean(tokens)) / np.std(tokens)
    credit = credit_of("aepo", tree, entropy_scale=0.2, shared_prefix_average=average)
    high = math.sqrt(2)
    assert credit.values[0] == pytest.approx([0, 0, high * (1 + 0.2 * z_1), 0, high * (1 + 0.2 * z_4)])


def test_reinforce_plus_plus_normalises_over_the_batch() -> None:
    # groups of two: rewards 1, 0 and 0, 0; all trajectories have two tokens: mean 1/4, std sqrt(3)/4
    settings = credit_settings("reinforce++", epsilon=0.0)
    first, second = assign_all([flat([1.0, 0.0]), flat([0.0, 0.0])], settings)
    low = -1 / math.sqrt(3)
    assert first.values[0] == pytest.approx([0, 0, math.sqrt(3), math.sqrt(3)])
    for value in (first.values[1], *second.values):
        assert value == pytest.approx([0, 0, low, low])
    assert first.per_token
    assert second.has_signal  # its own rewards do not differ, but the batch's do


def test_reinforce_plus_plus_may_take_the_groups_mean_off_first() -> None:
    # 1, 0 -> +1/2, -1/2; 5, 5 -> 0, 0: mean 0, std sqrt(1/8)
    settings = credit_settings("reinforce++", epsilon=0.0, group_mean=True)
    first, second = assign_all([flat([1.0, 0.0]), flat([5.0, 5.0])], settings)
    assert first.values[0] == pytest.approx([0, 0, math.sqrt(2), math.sqrt(2)])
    assert not second.has_signal


def test_reinforce_plus_plus_discounts_over_policy_tokens_and_takes_the_divergence_off() -> None:
    # one trajectory: prompt (2), policy (2), tool (1), policy (1); reward 1, gamma 1/2, kl 1/10
    # r: -0.1*1, -0.1*-2, 1 - 0.1*3 = 0.7;  G: 0.7, 0.2 + 0.35 = 0.55, -0.1 + 0.275 = 0.175
    tree = scored((prompt(), policy(0, finish=Finish.CALL), tool(1), policy(2, 1)), (3,), [1.0])
    divergence = [[np.empty(0), np.array([1.0, -2.0]), np.empty(0), np.array([3.0])]]
    settings = credit_settings("reinforce++", epsilon=0.0, gamma=0.5, kl=0.1)
    (credit,) = assign_all([tree], settings, divergence)
    returns = np.array([0.175, 0.55, 0.7])
    z = (returns - returns.mean()) / returns.std()
    assert credit.values[0] == pytest.approx([0, 0, z[0], z[1], 0, z[2]])
    with pytest.raises(ConfigError, match=r"credit.kl > 0 needs a reference policy"):
        assign_all([tree], settings)


@pytest.mark.parametrize("average", [False, True])
def test_reinforce_plus_plus_counts_shared_tokens_as_the_loss_does(average: bool) -> None:
    # rewards 1, 0, 0; copies of node 1 (2 tokens) carry 1 and 0. Token weights of value 1: 2 shared copies + 2 own
    # Counted twice: 4 of 10 tokens are 1; averaged: (2 * 1/2 + 2) = 3 of (2 + 2 + 2 + 2) = 8
    credit = credit_of("reinforce++", forked([1.0, 0.0, 0.0]), shared_prefix_average=average)
    share = 3 / 8 if average else 4 / 10
    high = (1 - share) / math.sqrt(share * (1 - share))
    assert credit.values[0] == pytest.approx([0, 0, high, high, 0, high, high])
