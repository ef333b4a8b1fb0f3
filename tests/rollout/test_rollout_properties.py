"""Whatever a policy babbles and a budget allows, a group keeps its promises."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_fakes import VOCAB, babble, engine, grow

from arpo.rollout.entropy import delta
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    BernoulliRule,
    BudgetSettings,
    EntropyRule,
    EntropySettings,
    NoBranching,
    RolloutSettings,
)
from arpo.tree import Decision, Finish, RolloutTree, Source

RULES = st.one_of(
    st.builds(EntropyRule, at=st.sampled_from(["state", "after_window", "before_window", "stale_state"])),
    st.builds(EntropyRule, at=st.just("state"), lookahead=st.just(True)),
    st.builds(
        BernoulliRule, base_probability=st.sampled_from([0.2, 0.8]), at=st.sampled_from(["state", "after_window"])
    ),
    st.builds(AbsoluteAndDeltaRule, entropy_threshold=st.sampled_from([0.5, 1.0])),
)


@st.composite
def rollouts(draw: st.DrawFn) -> RolloutSettings:
    initial = draw(st.integers(1, 4))
    extra = draw(st.integers(0, 5))
    return RolloutSettings(
        total=initial + extra,
        initial=initial,
        branches=draw(st.integers(1, 3)),
        max_tokens=draw(st.integers(1, 120)),
        max_calls=draw(st.integers(0, 4)),
        branching=draw(RULES) if extra else NoBranching(),
        budget=BudgetSettings(
            order=draw(st.sampled_from(["path", "spread", "arrival"])),
            per_trajectory_cap=draw(st.sampled_from([None, 1, 2])),
            max_forks=draw(st.sampled_from([None, 1, 2])),
            max_depth=draw(st.sampled_from([None, 1, 2])),
        ),
    )


def first_tokens_after(tree: RolloutTree, decision: Decision, window: int) -> np.ndarray:
    """Entropies of the policy tokens behind the decision's tool result, along its own trajectory."""
    node = decision.node
    if tree.segments[node].finish is Finish.WINDOW:
        node = tree.segments[node].parent
    assert tree.segments[node].source is Source.TOOL
    found: list[float] = []
    while len(found) < window and tree.children[node] and tree.segments[tree.children[node][0]].is_policy:
        node = tree.children[node][0]
        found.extend(tree.segments[node].entropies.tolist())
    return np.array(found[:window])


def last_tokens_before(tree: RolloutTree, decision: Decision, window: int) -> np.ndarray:
    """Entropies of the segment that ended in the call whose result is the decision's node, its first tokens."""
    assert tree.segments[decision.node].source is Source.TOOL
    return tree.segments[tree.segments[decision.node].parent].entropies[:window]


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.integers(1, 6), st.integers(0, 1 << 20), st.integers(1, 5))
def test_promises(chosen: RolloutSettings, window: int, seed: int, shuffle: int) -> None:
    entropy = EntropySettings(window=window)
    late = engine(babble, delay=lambda prefix, s: (s % shuffle) / 5000)
    tree = asyncio.run(grow(late, chosen, entropy=entropy, seed=seed))

    assert len(tree.leaves) == chosen.total
    assert tree.generated_tokens == late.stats.sampled_tokens, "every sampled token is in the tree once, or wasted"
    assert sum(d.opened for d in tree.decisions) <= chosen.total - chosen.initial
    assert len(tree.children[0]) == chosen.total - sum(d.opened for d in tree.decisions)
    for path in tree.paths():
        check_path(tree, path.nodes, len(path), chosen)
    for decision in tree.decisions:
        check_decision(tree, decision, chosen, entropy)


def check_path(tree: RolloutTree, nodes: tuple[int, ...], length: int, chosen: RolloutSettings) -> None:
    segments = [tree.segments[node] for node in nodes]
    events = [s.event for s in segments if s.event is not None]
    assert length - len(segments[0]) <= chosen.max_tokens
    assert sum(event.executed for event in events) <= chosen.max_calls
    assert len(events) <= chosen.max_calls + 1
    assert segments[-1].is_policy
    assert segments[-1].finish is not Finish.WINDOW
    forks = sum(1 for node in nodes if any(d.node == node and d.opened for d in tree.decisions))
    assert chosen.budget.max_forks is None or forks <= chosen.budget.max_forks


def check_decision(tree: RolloutTree, decision: Decision, chosen: RolloutSettings, entropy: EntropySettings) -> None:
    root = tree.segments[tree.ancestry(decision.node)[1]]
    assert decision.h_root == pytest.approx(float(np.mean(root.entropies[: entropy.window])))
    above = [tree.segments[node] for node in tree.ancestry(decision.node)]
    assert decision.depth == sum(s.source is Source.TOOL for s in above)
    rule = chosen.branching
    if isinstance(rule, NoBranching) or not rule.lookahead:
        width = 1 if rule.type != "none" and rule.at == "state" else entropy.window
        stale = rule.type != "none" and rule.at == "stale_state"
        read = last_tokens_before(tree, decision, width) if stale else first_tokens_after(tree, decision, width)
        assert decision.h_tool == pytest.approx(float(np.mean(read)))
        assert decision.delta == pytest.approx(delta(decision.h_tool, decision.h_root, entropy, VOCAB))
    if isinstance(rule, EntropyRule) and decision.wanted:
        assert decision.probability > rule.threshold
