"""Entropy curves, branch statistics and call counts on trees small enough to check by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from random_trees import call, segment, small_tree, trees

from arpo.study.branches import branch_statistics
from arpo.study.calls import count_calls
from arpo.study.origins import Origin, origins
from arpo.study.traces import WINDOW, entropy_after, scalars
from arpo.tree import Decision, Finish, Outcome, RolloutTree, Source


def entropic(values, parent, **options):
    return segment(range(len(values)), Source.POLICY, parent, entropies=values, **options)


def window_tree(rewards=(1.0, 0.0, 1.0), extra=0.0) -> RolloutTree:
    """Search, then a window of two tokens, then a branch; one more root that calls Python and gets a notice."""
    segments = (
        segment([1], Source.PROMPT),
        entropic([0.1, 0.2], 0, finish=Finish.CALL),
        segment([5, 6], Source.TOOL, 1, event=call("search")),
        entropic([0.5 + extra, 0.7 + extra], 2, finish=Finish.WINDOW),
        entropic([0.4], 3),
        entropic([0.8, 0.9], 3),
        entropic([0.3], 0, finish=Finish.CALL),
        segment([7], Source.TOOL, 6, event=call("python")),
        entropic([0.05], 7, finish=Finish.CALL),
        segment([8], Source.NOTICE, 8, event=call("python", executed=False)),
        entropic([0.6], 9),
    )
    decisions = (
        Decision(3, "search", 1, 0.15, 0.6, 0.45, 0.59, 1, 1),
        Decision(7, "python", 1, 0.3, 0.05, -0.25, 0.45, 0, 0),
    )
    outcomes = tuple(Outcome(reward) for reward in rewards)
    return RolloutTree("w", segments, (4, 5, 10), decisions, outcomes).validate(total=3)


def test_origins_count_on_through_a_window():
    found = origins(window_tree())
    assert found[1] == Origin("start", 0)
    assert found[3] == Origin("search", 0)
    assert found[4] == found[5] == Origin("search", 2)
    assert found[8] == Origin("python", 0)
    assert found[10] == Origin("notice", 0)
    assert found[0] is found[2] is found[9] is None


def test_entropy_curves_count_each_token_once():
    curves = entropy_after([window_tree()])
    assert curves["search"].mean == pytest.approx([0.5, 0.7, 0.6, 0.9])
    assert curves["search"].count == (1, 1, 2, 1)
    assert curves["start"].mean == pytest.approx([0.2, 0.2])
    assert curves["python"].mean == pytest.approx([0.05])
    assert curves["search"].first == pytest.approx(np.mean([0.5, 0.7, 0.4, 0.8, 0.9]))
    figures = scalars(curves)
    assert figures["after_python"] == pytest.approx(0.05)
    assert figures["start"] == pytest.approx((0.1 + 0.2 + 0.3) / 3)


def test_entropy_bands_take_a_question_for_one_observation():
    alone = entropy_after([window_tree(), window_tree(extra=0.2)])["search"]
    doubled = entropy_after([window_tree()] * 2 + [window_tree(extra=0.2)] * 2)["search"]
    assert alone.mean[0] == pytest.approx(0.6)
    # Two clusters 0.1 off the mean: sqrt(2/1 * (0.1^2 + 0.1^2)) / 2 = 0.1.
    assert alone.high[0] - alone.mean[0] == pytest.approx(1.96 * 0.1)
    assert doubled.high[0] - doubled.mean[0] == pytest.approx(1.96 * 0.1 / np.sqrt(3))
    assert alone.low[0] == pytest.approx(0.6 - 0.196)


def test_entropy_curves_stop_at_the_last_position_asked_for():
    long = RolloutTree("l", (segment([1], Source.PROMPT), entropic(np.arange(80) / 100, 0)), (1,))
    curve = entropy_after([long], positions=30)["start"]
    assert len(curve.mean) == len(curve.low) == len(curve.count) == 30
    assert curve.first == pytest.approx(np.mean(np.arange(WINDOW)) / 100)
    assert scalars({"start": curve}) == {"start": curve.first, "after_search": None, "after_python": None}


@settings(max_examples=15, deadline=None)
@given(trees())
def test_curves_of_random_trees_hold_every_policy_token(tree):
    curves = entropy_after([tree], positions=1000)
    assert sum(sum(curve.count) for curve in curves.values()) == tree.generated_tokens - tree.wasted_tokens
    for curve in curves.values():
        assert np.all(np.array(curve.mean) <= np.array(curve.high) + 1e-12)
        assert min(curve.low) >= 0


def test_branches_by_hand():
    found = branch_statistics([window_tree()])
    assert (found.total.points, found.total.branched, found.total.opened, found.wanted) == (2, 1, 1, 1)
    assert found.by_tool["search"].opened == 1
    assert (found.by_tool["python"].points, found.by_tool["python"].branched) == (1, 0)
    assert found.by_depth[1].points == 2
    assert sum(found.delta.opened) == sum(found.delta.closed) == 1
    assert found.delta.edges[0] == pytest.approx(-0.45)
    # Siblings end with 1 and 0; of the two pairs with the other root, one differs.
    assert found.points_differ.value == found.siblings.value == 1.0
    assert found.strangers.value == pytest.approx(0.5)
    assert found.busiest.value is None


def test_branches_worth_counts_points_and_leaves_failures_out():
    same, differ = window_tree((1.0, 1.0, 1.0)), window_tree((1.0, 0.0, None))
    found = branch_statistics([same, differ, differ, window_tree((None, 0.0, None))])
    assert found.siblings.n == 3
    assert found.siblings.value == pytest.approx(2 / 3)
    assert found.siblings.ci95.low < 2 / 3 < found.siblings.ci95.high <= 1
    # Only in `same` does the other root have a reward.
    assert found.strangers.n == 1
    assert found.strangers.value == 0


def test_busiest_trajectory_shows_a_budget_spent_on_one():
    tree = small_tree()
    both = replace(tree, decisions=(replace(tree.decisions[0], wanted=2, opened=1), replace(tree.decisions[0], node=3)))
    assert branch_statistics([both]).busiest.value == 1.0
    apart = replace(both, decisions=(both.decisions[1], replace(both.decisions[1], node=5)))
    assert branch_statistics([apart]).busiest.value == 0.5


def test_nothing_branched_and_nothing_scored():
    tree = replace(small_tree(), decisions=(), outcomes=())
    found = branch_statistics([tree])
    assert found.total.points == 0
    assert found.delta.edges == ()
    assert found.siblings.value is found.strangers.value is None


def flat_tree(calls: int, roots: int) -> list:
    segments = [segment([1], Source.PROMPT)]
    for _ in range(roots):
        parent = 0
        for _ in range(calls):
            segments += [entropic([0.1], parent, finish=Finish.CALL)]
            segments += [segment([2], Source.TOOL, len(segments) - 1, event=call())]
            parent = len(segments) - 1
        segments.append(entropic([0.1], parent))
    return segments


@pytest.mark.parametrize(("calls", "ratio"), [(2, 0.625), (3, 0.75), (6, 0.875)])
def test_the_counting_identity_is_what_is_counted_when_all_trajectories_make_t_calls(calls, ratio):
    """N / M = 0.5, one branch after call 1 and one after call 2: algorithms as published, 0.63, 0.75, 0.88."""
    segments = flat_tree(calls, 2)
    results = [n for n, s in enumerate(segments) if s.source is Source.TOOL]
    decisions = []
    for depth, node in ((1, results[0]), (2, results[calls + 1])):
        parent = node
        for _ in range(calls - depth):
            segments.append(entropic([0.1], parent, finish=Finish.CALL))
            segments.append(segment([2], Source.TOOL, len(segments) - 1, event=call()))
            parent = len(segments) - 1
        segments.append(entropic([0.1], parent))
        decisions.append(Decision(node, "search", depth, 0.1, 0.2, 0.1, 0.52, 1, 1))
    parents = {s.parent for s in segments}
    leaves = tuple(n for n in range(len(segments)) if n not in parents)
    tree = RolloutTree("c", tuple(segments), leaves, tuple(decisions), tuple(Outcome(1.0) for _ in leaves)).validate(4)
    found = count_calls([tree])
    assert found.measured == pytest.approx(ratio)
    assert found.identity == pytest.approx(ratio)
    assert (found.roots, found.trajectories, found.bound, found.per_trajectory) == (2, 4, 0.5, calls)
    assert found.reward_per_call == pytest.approx(4 / (4 * calls * ratio))


def test_calls_of_unequal_trajectories_leave_a_gap_to_the_identity():
    found = count_calls([window_tree()])
    assert (found.executed, found.flat) == (2, 3)
    assert found.measured == pytest.approx(2 / 3)
    assert found.identity == pytest.approx((2 * 1 + (1 - 1)) / 3)
    assert found.reward_per_call == pytest.approx(1.0)


def test_calls_that_were_never_made():
    tree = RolloutTree("n", (segment([1], Source.PROMPT), entropic([0.1], 0)), (1,), outcomes=(Outcome(1.0),))
    found = count_calls([tree])
    assert found.measured is found.identity is found.reward_per_call is None
    assert found.per_trajectory == 0
    with pytest.raises(ValueError, match="no trees"):
        count_calls([])


def test_independent_trajectories_save_nothing():
    segments = flat_tree(2, 3)
    parents = {s.parent for s in segments}
    tree = RolloutTree("f", tuple(segments), tuple(n for n in range(len(segments)) if n not in parents)).validate(3)
    assert count_calls([tree]).measured == count_calls([tree]).identity == 1.0
