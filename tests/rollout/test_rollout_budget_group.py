"""Every rule under every budget in whole groups: one tree whatever finishes first, and no limit exceeded in it."""

import asyncio
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_fakes import ToyTool, babble, by_turn, engine, grow, toolbox

from arpo.rollout.settings import (
    AepoRule,
    BudgetSettings,
    CredibleRule,
    EntropyRule,
    EntropySettings,
    RandomRule,
    ReverseRule,
    RolloutSettings,
    UniformRule,
)
from arpo.tools.base import ToolResult, ToolStatus
from arpo.train.stats import busiest_share
from arpo.tree import Decision, RolloutTree

PLACES = st.sampled_from(["state", "after_window"])
RULES = st.one_of(
    st.builds(EntropyRule, at=PLACES),
    st.builds(RandomRule, at=PLACES, probability=st.sampled_from([0.3, 1.0])),
    st.builds(UniformRule, at=PLACES),
    st.builds(ReverseRule, at=PLACES),
    st.builds(AepoRule, at=PLACES, monitor=st.booleans(), sharpness=st.just(3.0)),
    st.builds(CredibleRule, at=PLACES),
)
LIMITS = st.sampled_from([None, 1, 2])
BUDGETS = st.builds(
    BudgetSettings,
    order=st.sampled_from(["path", "spread"]),
    per_trajectory_cap=LIMITS,
    max_forks=LIMITS,
    max_depth=LIMITS,
    min_tokens_left=st.sampled_from([0, 60]),
)


def timeless(tree: RolloutTree) -> tuple[object, ...]:
    """Everything but wall-clock times, and which of two equal calls came first."""
    segments = [s if s.event is None else replace(s, event=replace(s.event, latency=0.0)) for s in tree.segments]
    return segments, tree.leaves, repr(tree.decisions), tree.wasted_tokens


def owners(tree: RolloutTree) -> dict[int, int]:
    """The first trajectory through each node."""
    found: dict[int, int] = {}
    for leaf in tree.leaves:
        for node in tree.ancestry(leaf):
            found.setdefault(node, leaf)
    return found


@settings(max_examples=30, deadline=None)
@given(RULES, BUDGETS, st.integers(1, 2), st.integers(0, 1 << 20))
def test_one_tree_whatever_finishes_first(rule, budget: BudgetSettings, branches: int, seed: int) -> None:
    chosen = RolloutSettings(total=7, initial=3, branches=branches, max_tokens=120, branching=rule, budget=budget)
    trees = []
    for shuffle in (1, 5):
        late = engine(babble, delay=lambda prefix, s, m=shuffle: (s % m) / 4000)
        slow = [ToyTool(name, delay=lambda c, m=shuffle: (c.seed % m) / 4000) for name in ("search", "python")]
        trees.append(asyncio.run(grow(late, chosen, tools=toolbox(*slow), seed=seed)))
    assert timeless(trees[0]) == timeless(trees[1])
    check(trees[0], chosen)


def check(tree: RolloutTree, chosen: RolloutSettings) -> None:
    budget, owner = chosen.budget, owners(tree)
    opened: Counter[int] = Counter()
    for decision in tree.decisions:
        opened[owner[decision.node]] += decision.opened
        assert not decision.opened or budget.max_depth is None or decision.depth <= budget.max_depth
        if decision.opened:
            spent = sum(len(tree.segments[node]) for node in tree.ancestry(decision.node)[1:])
            assert chosen.max_tokens - spent >= budget.min_tokens_left
    assert budget.per_trajectory_cap is None or max(opened.values(), default=0) <= budget.per_trajectory_cap
    share = busiest_share(tree)
    assert share is None or share == max(opened.values()) / sum(opened.values())
    if isinstance(chosen.branching, AepoRule) and chosen.branching.monitor:
        assert opened[owner[tree.children[0][0]]] == 0, "the trajectory that monitors does not branch"


DOUBTS = by_turn("abcd<s>q</s>", [("abcd", 5.0), ("<s>r</s>", 0.1)], [("abcd", 5.0), ("[42]$", 0.1)])
"""Uncertain after each of two results."""


def found(tree: RolloutTree) -> list[Decision]:
    return sorted(tree.decisions, key=lambda decision: decision.depth)


async def test_credible_knows_how_the_call_went() -> None:
    answers = {
        "good": ToolResult(ToolStatus.OK, "yes", score=0.9),
        "poor": ToolResult(ToolStatus.OK, "yes", score=0.1),
        "unscored": ToolResult(ToolStatus.OK, "yes"),
        "empty": ToolResult(ToolStatus.OK, " \n"),
        "failed": ToolResult(ToolStatus.TOOL_ERROR, "no such thing"),
    }
    for name, answer in answers.items():
        chosen = RolloutSettings(total=2, initial=1, branching=CredibleRule(min_score=0.5), max_tokens=100)
        tools = toolbox(ToyTool("search", lambda text, answer=answer: answer))
        tree = await grow(DOUBTS, chosen, tools=tools)
        assert sum(d.opened for d in tree.decisions) == (name == "good"), name


async def test_aepo_counts_branchings_in_a_row_along_the_path() -> None:
    """A penalty of .9: after one branching the next is out of reach, for the branch as for the trunk."""
    rule = AepoRule(monitor=False, penalty=0.9, base_probability=0.5)
    tree = await grow(DOUBTS, RolloutSettings(total=2, initial=1, branching=rule, max_tokens=100))
    first, *later = found(tree)
    assert (first.wanted, [d.wanted for d in later]) == (1, [0, 0])
    assert all("after 1 in a row" in decision.reason for decision in later)


async def test_aepo_sizes_the_group_by_its_first_trajectory() -> None:
    """H_root is 0.1 and H after the results about 5: sharp enough, all but two are kept for branches."""
    for sharpness, initial in ((0.0, 3), (0.2, 2), (9.0, 2)):
        rule = AepoRule(sharpness=sharpness)
        tree = await grow(DOUBTS, RolloutSettings(total=6, initial=6, branching=rule, max_tokens=100))
        assert len(tree.leaves) == 6
        assert len(tree.children[0]) - tree.top_ups == initial
        assert sum(decision.opened for decision in tree.decisions) == 3


async def test_spread_gives_the_branch_to_the_larger_rise() -> None:
    """Each root calls with its own letter, and how uncertain it is afterwards depends on that letter."""

    def play(prefix: tuple[int, ...], seed: int):
        from rollout_fakes import decode, steps

        text = decode(prefix)
        if "}" not in text:
            return steps(f"abcd<s>{seed % 7}</s>")
        rise = 1.0 + int(text[text.index("<s>") + 3])
        said = len(text) - text.index("}") - 1
        return steps([("abcd", rise), ("[42]$", 0.1)])[said:]

    for seed in range(6):
        chosen = RolloutSettings(total=5, initial=4, max_tokens=100, budget=BudgetSettings(order="spread"))
        tree = await grow(play, chosen, entropy=EntropySettings(window=4, normaliser="none"), seed=seed)
        lucky = [d for d in tree.decisions if d.opened]
        assert [d.delta for d in lucky] == [max(d.delta for d in tree.decisions)]
