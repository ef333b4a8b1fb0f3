"""The tree: what it promises on random trees, and that `validate` catches every kind of breakage."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from random_trees import call, segment, small_tree, trees

from arpo.tree import Decision, Finish, Outcome, RolloutTree, Source, TreeError

PROPERTY = settings(max_examples=25, deadline=None)


@PROPERTY
@given(trees())
def test_random_trees_are_valid(tree):
    assert tree.validate(total=len(tree.leaves)) is tree


@PROPERTY
@given(trees())
def test_paths_are_the_exact_concatenation_of_their_nodes(tree):
    for leaf, path in zip(tree.leaves, tree.paths(), strict=True):
        assert path.nodes[0] == 0
        assert path.nodes[-1] == leaf
        assert all(
            tree.segments[child].parent == parent for parent, child in zip(path.nodes, path.nodes[1:], strict=False)
        )
        expected = [token for node in path.nodes for token in tree.segments[node].tokens.tolist()]
        assert path.token_T.tolist() == expected
        assert len(path) == len(expected)


@PROPERTY
@given(trees())
def test_two_trajectories_share_exactly_the_tokens_of_their_common_nodes(tree):
    first, last = tree.path(tree.leaves[0]), tree.path(tree.leaves[-1])
    common = sum(len(tree.segments[n]) for n in set(first.nodes) & set(last.nodes))
    for name in ("token_T", "policy_T", "logprob_T", "entropy_T", "node_T", "offset_T"):
        assert np.array_equal(getattr(first, name)[:common], getattr(last, name)[:common])
    assert not set(first.node_T[common:]) & set(last.node_T[common:]) or len(tree.leaves) == 1


@PROPERTY
@given(trees())
def test_only_sampled_tokens_are_in_the_mask(tree):
    for path in tree.paths():
        for i, (node, offset) in enumerate(zip(path.node_T, path.offset_T, strict=True)):
            s = tree.segments[node]
            assert path.policy_T[i] == (s.source is Source.POLICY)
            assert path.token_T[i] == s.tokens[offset]
            assert path.logprob_T[i] == (s.logprobs[offset] if s.is_policy else 0)
            assert path.entropy_T[i] == (s.entropies[offset] if s.is_policy else 0)


@PROPERTY
@given(trees())
def test_multiplicity_counts_the_trajectories_through_a_node(tree):
    chains = [path.nodes for path in tree.paths()]
    expected = [sum(node in chain for chain in chains) for node in range(len(tree.segments))]
    assert tree.multiplicity.tolist() == expected
    assert tree.multiplicity[0] == len(tree.leaves)


@PROPERTY
@given(trees())
def test_costs_count_shared_work_once(tree):
    total = sum(len(path) for path in tree.paths())
    unique = sum(len(s) for s in tree.segments)
    assert tree.sharing == pytest.approx(total / unique)
    assert tree.sharing >= 1
    sampled = {(n, o) for p in tree.paths() for n, o in zip(p.node_T[p.policy_T], p.offset_T[p.policy_T], strict=True)}
    assert tree.generated_tokens == len(sampled) + tree.wasted_tokens
    nodes = {n for path in tree.paths() for n in path.nodes if tree.segments[n].event is not None}
    assert tree.tool_calls == sum(tree.segments[n].event.executed for n in nodes)


@PROPERTY
@given(trees(scored=False))
def test_scoring_returns_another_tree_and_leaves_the_first_alone(tree):
    outcomes = [Outcome(None)] * len(tree.leaves)
    scored = tree.with_outcomes(outcomes)
    assert scored.rewards == (None,) * len(tree.leaves)
    assert tree.outcomes == ()
    assert replace(scored, outcomes=()) == tree
    assert scored != tree


def test_the_small_tree_by_hand():
    tree = small_tree().validate(total=3)
    assert tree.children == ((1, 5), (2,), (3, 4), (), (), ())
    assert tree.multiplicity.tolist() == [3, 2, 2, 1, 1, 1]
    assert tree.ancestry(4) == (0, 1, 2, 4)
    assert tree.rewards == (1.1, 0.0, -1.0)
    assert (tree.generated_tokens, tree.tool_calls) == (8, 1)
    assert tree.sharing == pytest.approx((10 + 12 + 5) / 15)
    assert tree.path(3).policy_T.tolist() == [False] * 3 + [True] * 2 + [False] * 4 + [True]


def test_a_decision_without_entropy_equals_its_copy():
    blind = [Decision(2, "search", 1, float("nan"), float("nan"), float("nan"), 0.5, 1, 1) for _ in range(2)]
    assert blind[0] == blind[1]
    assert blind[0] != replace(blind[1], h_root=0.0)
    assert blind[0] != replace(blind[1], opened=0)
    assert blind[0] != "a decision"


def with_segment(node: int, **changes) -> RolloutTree:
    tree = small_tree()
    segments = list(tree.segments)
    segments[node] = replace(segments[node], **changes)
    return replace(tree, segments=tuple(segments))


def with_decision(**changes) -> RolloutTree:
    tree = small_tree()
    return replace(tree, decisions=(replace(tree.decisions[0], **changes),))


def with_reward(reward: float | None, **changes) -> RolloutTree:
    tree = with_segment(3, **changes)
    return tree.with_outcomes((Outcome(reward), *tree.outcomes[1:]))


F32 = np.float32
BROKEN = {
    "no segments": (replace(small_tree(), segments=()), "no segments"),
    "empty prompt": (with_segment(0, tokens=np.empty(0, np.int32)), "empty prompt"),
    "negative waste": (replace(small_tree(), wasted_tokens=-1), "wasted tokens"),
    "a second root": (with_segment(5, parent=-1), "node 5 .*does not come before"),
    "a parent below -1": (with_segment(5, parent=-2), "node 5 .*does not come before"),
    "a later parent": (with_segment(1, parent=4), "node 1 .*does not come before"),
    "its own parent": (with_segment(1, parent=1), "node 1 .*does not come before"),
    "a prompt with a parent": (with_segment(0, parent=0), "node 0 .*the prompt has none"),
    "two prompts": (with_segment(2, source=Source.PROMPT, event=None), "node 2 .*nothing else"),
    "no prompt": (with_segment(0, source=Source.NOTICE), "node 0 .*nothing else"),
    "wide tokens": (with_segment(1, tokens=np.array([4, 5])), "node 1 .*int32"),
    "flat tokens": (with_segment(1, tokens=np.array([[4, 5]], np.int32)), "node 1 .*int32"),
    "negative tokens": (with_segment(1, tokens=np.array([4, -5], np.int32)), "node 1 .*negative"),
    "missing log-probs": (with_segment(1, logprobs=np.zeros(1, F32)), "node 1 .*logprobs"),
    "log-probs of a result": (with_segment(2, logprobs=np.zeros(4, F32)), "node 2 .*logprobs"),
    "entropies in a square": (with_segment(1, entropies=np.zeros((2, 2), F32)), "node 1 .*entropies"),
    "double log-probs": (with_segment(1, logprobs=np.zeros(2)), "node 1 .*float32"),
    "NaN entropy": (with_segment(1, entropies=np.array([0, np.nan], F32)), "node 1 .*NaN"),
    "infinite log-prob": (with_segment(1, logprobs=np.array([0, -np.inf], F32)), "node 1 .*infinity"),
    "no finish": (with_segment(1, finish=Finish.NONE), "node 1 .*finish"),
    "finish of a result": (with_segment(2, finish=Finish.STOP), "node 2 .*finish"),
    "no version": (with_segment(1, version=-1), "node 1 .*version"),
    "version of a result": (with_segment(2, version=0), "node 2 .*version"),
    "result without event": (with_segment(2, event=None), "node 2 .*without its event"),
    "event of the prompt": (with_segment(0, event=call()), "node 0 .*event in the prompt"),
    "a result after no result": (with_segment(1, event=call()), "node 1 .*got no result"),
    "nothing sampled": (
        with_segment(3, tokens=np.empty(0, np.int32), logprobs=np.empty(0, F32), entropies=np.empty(0, F32)),
        "node 3 .*empty policy",
    ),
    "a trajectory twice": (replace(small_tree(), leaves=(3, 4, 4)), "listed twice"),
    "a missing leaf": (replace(small_tree(), leaves=(3, 4), outcomes=()), "not its childless nodes"),
    "an inner leaf": (replace(small_tree(), leaves=(3, 4, 5, 2), outcomes=()), "not its childless nodes"),
    "a leaf out of range": (replace(small_tree(), leaves=(3, 4, 9)), "not its childless nodes"),
    "too few outcomes": (small_tree().with_outcomes(small_tree().outcomes[:2]), "2 outcomes for 3"),
    "NaN reward": (with_reward(float("nan")), "leaf 3: reward nan"),
    "reward of a failure": (with_reward(0.0, finish=Finish.ERROR), "leaf 3: reward 0.0 for a failure"),
    "a window at the end": (with_segment(3, finish=Finish.WINDOW), "node 3 .*does not continue"),
    "a window before a result": (with_segment(1, finish=Finish.WINDOW), "node 1 .*does not continue"),
    "life after failure": (with_segment(1, finish=Finish.ERROR), "node 1 .*follows a failure"),
    "decision nowhere": (with_decision(node=6), "no such node"),
    "more opened than wanted": (with_decision(opened=2), "opened 2 of 1"),
    "opened nothing": (with_decision(opened=2, wanted=2), "node 2: 2 opened, 2 children"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_validate_names_every_kind_of_breakage(case):
    tree, message = BROKEN[case]
    with pytest.raises(TreeError, match=message):
        tree.validate()


def test_validate_checks_the_number_of_trajectories():
    with pytest.raises(TreeError, match="3 trajectories, not 16"):
        small_tree().validate(total=16)


def test_validate_wants_one_baseline_per_root():
    tree = small_tree()
    other = replace(tree.decisions[0], node=3, h_root=0.31, opened=0)
    with pytest.raises(TreeError, match=r"node 3: baseline 0.31, its root's is 0.3"):
        replace(tree, decisions=(*tree.decisions, other)).validate()
    replace(tree, decisions=(*tree.decisions, replace(other, node=5))).validate()


def test_a_failure_may_have_no_tokens_and_must_have_no_reward():
    empty = {"tokens": np.empty(0, np.int32), "logprobs": np.empty(0, F32), "entropies": np.empty(0, F32)}
    with_reward(None, finish=Finish.ERROR, **empty).validate(total=3)


def test_a_call_without_its_result_may_end_a_trajectory_and_is_counted():
    tree = with_segment(4, event=call(), finish=Finish.LENGTH).validate(total=3)
    assert tree.tool_calls == small_tree().tool_calls + 1


def test_segments_compare_by_value():
    assert segment([1, 2], Source.POLICY) == segment([1, 2], Source.POLICY)
    assert segment([1, 2], Source.POLICY) != segment([1, 3], Source.POLICY)
    assert segment([1, 2], Source.POLICY) != segment([1, 2], Source.POLICY, version=1)
    assert segment([1, 2], Source.PROMPT) != [1, 2]
