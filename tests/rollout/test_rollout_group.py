"""One group: where branches open, what malformed and failing calls lead to, budgets, failures, seeds."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from rollout_fakes import ToyDialect, ToyTool, agent, babble, by_turn, decode, engine, grow, texts, toolbox

from arpo.engine.base import Capabilities
from arpo.engine.scripted import ScriptedEngine
from arpo.errors import ConfigError, DataError
from arpo.rollout.scheduler import check, rollout_many
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    AepoRule,
    BernoulliRule,
    BudgetSettings,
    EntropyRule,
    EntropySettings,
    NoBranching,
    RolloutSettings,
    UniformRule,
)
from arpo.seeds import derive
from arpo.task import ask
from arpo.tools.base import ToolResult, ToolStatus
from arpo.tree import Finish, RolloutTree, Segment, Source

GRPO = RolloutSettings(total=2, initial=2, branching=NoBranching(), max_tokens=400, share_calls="off")
DOUBTS = by_turn("abcd<s>q</s>", [("abcd", 5.0), ("efgh[42]$", 0.1)])


def arpo(at: str = "after_window", total: int = 2, initial: int = 1, **changes: object) -> RolloutSettings:
    rule = EntropyRule.model_validate({"at": at, "lookahead": changes.pop("lookahead", False)})
    return RolloutSettings.model_validate(
        {"total": total, "initial": initial, "branching": rule, "max_tokens": 400, **changes}
    )


def shape(tree: RolloutTree) -> list[tuple[int, str, str]]:
    """(parent, source, text) of every node."""
    return [(s.parent, str(s.source), decode(s.tokens.tolist())) for s in tree.segments]


def same(left: RolloutTree, right: RolloutTree) -> bool:
    """Equal in everything but wall-clock latencies. Decisions are compared as text because NaN is not equal to NaN."""

    def timeless(tree: RolloutTree) -> list[Segment]:
        return [s if s.event is None else replace(s, event=replace(s.event, latency=0.0)) for s in tree.segments]

    return (timeless(left), left.leaves, repr(left.decisions), left.wasted_tokens) == (
        timeless(right),
        right.leaves,
        repr(right.decisions),
        right.wasted_tokens,
    )


# Positions


async def test_after_window_cuts_the_segment_and_children_continue_it() -> None:
    tree = await grow(DOUBTS, arpo())
    assert shape(tree) == [
        (-1, "prompt", "why?"),
        (0, "policy", "abcd<s>q</s>"),
        (1, "tool", "{Q}"),
        (2, "policy", "abcd"),
        (3, "policy", "efgh[42]$"),
        (3, "policy", "efgh[42]$"),
    ]
    assert tree.segments[3].finish is Finish.WINDOW
    (decision,) = tree.decisions
    assert (decision.node, decision.tool, decision.depth, decision.opened) == (3, "search", 1, 1)
    assert tree.leaves == (4, 5)


async def test_where_nothing_opens_the_pause_leaves_no_trace() -> None:
    sure = engine(by_turn("abcd<s>q</s>", "abcdefgh[42]$"))
    tree = await grow(sure, arpo())
    assert len(sure.requests) == 3 + 2
    assert shape(tree)[3] == (2, "policy", "abcdefgh[42]$")
    assert (tree.segments[3].finish, len(tree.segments[3].entropies)) == (Finish.STOP, 13)
    assert [(d.node, d.opened) for d in tree.decisions] == [(2, 0), (5, 0)]


@pytest.mark.parametrize("at", ["state", "before_window"])
async def test_children_open_right_after_the_result(at: str) -> None:
    tree = await grow(DOUBTS, arpo(at))
    assert shape(tree) == [
        (-1, "prompt", "why?"),
        (0, "policy", "abcd<s>q</s>"),
        (1, "tool", "{Q}"),
        (2, "policy", "abcdefgh[42]$"),
        (2, "policy", "abcdefgh[42]$"),
    ]
    (decision,) = tree.decisions
    assert (decision.node, decision.opened) == (2, 1)
    assert decision.reason.startswith("before_window: ") == (at == "before_window")


async def test_state_reads_the_next_token_alone() -> None:
    first_sure = by_turn("abcd<s>q</s>", [("a", 0.0), ("bcd", 9.0), ("efgh[42]$", 0.1)])
    assert [d.wanted for d in (await grow(first_sure, arpo("state"))).decisions] == [0, 0]
    first_unsure = by_turn("abcd<s>q</s>", [("a", 9.0), ("bcdefgh[42]$", 0.0)])
    (decision,) = (await grow(first_unsure, arpo("state"))).decisions
    assert (decision.h_tool, decision.opened) == (9.0, 1)


async def test_lookahead_is_thrown_away_and_counted() -> None:
    asked = engine(DOUBTS)
    tree = await grow(asked, arpo("state", lookahead=True))
    assert tree.wasted_tokens == 4
    assert tree.generated_tokens == asked.stats.sampled_tokens
    (decision,) = tree.decisions
    assert (decision.h_tool, decision.node, decision.opened) == (5.0, 2, 1)
    assert len({seed for _, _, seed in asked.requests}) == len(asked.requests) == 4


async def test_segment_that_ends_inside_the_window_opens_nothing_but_is_measured() -> None:
    tree = await grow(by_turn("abcd<s>q</s>", [("4$", 3.0)]), arpo())
    assert [(d.wanted, d.h_tool, d.reason) for d in tree.decisions] == [(0, 3.0, "segment ended inside the window")] * 2
    early = await grow(by_turn("abcd<s>q</s>", [("4$", 3.0)]), arpo("before_window"))
    assert [d.opened for d in early.decisions] == [1]


async def test_stop_string_that_the_window_cuts_in_two_still_ends_both_parts() -> None:
    tree = await grow(by_turn("abcd<s>q</s>", [("<s>r</s>", 5.0)], "[42]$"), arpo(), entropy=EntropySettings(window=6))
    assert shape(tree)[3:7] == [
        (2, "policy", "<s>r</"),
        (3, "policy", "s>"),
        (4, "tool", "{R}"),
        (5, "policy", "[42]$"),
    ]
    assert texts(tree) == ["why?abcd<s>q</s>{Q}<s>r</s>{R}[42]$"] * 2


async def test_a_change_of_weights_between_two_pieces_stays_visible() -> None:
    class Restless(ScriptedEngine):
        async def sample(self, tokens, params, seed):
            segment = await super().sample(tokens, params, seed)
            await self.publish(None, self.version + 1)
            return segment

    sure = Restless(by_turn("abcd<s>q</s>", "abcdefgh[42]$"), decode, end_tokens=ToyDialect.end_tokens)
    tree = await grow(sure, arpo())
    versions = [s.version for s in tree.segments if s.is_policy]
    assert versions[:3] == [0, 1, 2]
    assert tree.segments[3].finish is Finish.WINDOW


# Budget of branches


async def test_z_children_open_together() -> None:
    tree = await grow(DOUBTS, arpo(total=4, branches=3))
    (decision,) = tree.decisions
    assert (decision.wanted, decision.opened) == (3, 3)
    assert tree.children[3] == (4, 5, 6, 7)


async def test_budget_spent_is_said() -> None:
    tree = await grow(DOUBTS, arpo(total=3, initial=2, branches=2))
    assert sorted((d.wanted, d.opened) for d in tree.decisions) == [(2, 0), (2, 1)]
    assert all(d.reason.endswith("budget spent") for d in tree.decisions)


async def test_branch_depth_is_limited() -> None:
    always = by_turn("abcd<s>q</s>", [("abcd", 5.0), ("<s>r</s>", 0.1)], [("abcd", 5.0), ("[42]$", 0.1)])
    free = await grow(always, arpo(total=4))
    assert sorted((d.depth, d.opened) for d in free.decisions) == [(1, 1), (2, 1), (2, 1)]
    shallow = await grow(always, arpo(total=4, budget=BudgetSettings(max_forks=1)))
    assert sum(d.opened for d in shallow.decisions) == 1
    refused = [d for d in shallow.decisions if "max_forks reached" in d.reason]
    assert [d.depth for d in refused] == [2, 2]


async def test_absolute_and_delta_acts() -> None:
    for threshold, opened in ((4.9, 1), (5.0, 0)):
        rule = AbsoluteAndDeltaRule(entropy_threshold=threshold)
        tree = await grow(DOUBTS, arpo().model_copy(update={"branching": rule}))
        assert sum(d.opened for d in tree.decisions) == opened


async def test_top_ups_never_branch_and_are_recorded() -> None:
    """The root is sure of itself; the top-ups are in doubt, and there is nothing left to branch with."""
    in_doubt = {derive("test", 0, "toy", path, 1, "sample") for path in ("r1", "r2")}

    def continuation(prefix: tuple[int, ...], seed: int):
        turns = ["abcd<s>q</s>", [("abcd", 5.0), ("efgh[42]$", 0.1)] if seed in in_doubt else "abcdefgh[42]$"]
        return by_turn(*turns)(prefix, seed)

    asked = engine(continuation)
    tree = await grow(asked, arpo(total=3))
    assert [(d.wanted, d.opened) for d in tree.decisions] == [(0, 0), (1, 0), (1, 0)]
    assert all(d.reason.endswith("budget spent") for d in tree.decisions[1:])
    assert len(tree.children[0]) == 3
    assert len(asked.requests) == 3 + 2 * 2


# Calls


async def test_malformed_call_is_corrected_and_charged() -> None:
    settings = GRPO.model_copy(update={"max_calls": 1})
    tree = await grow(by_turn("<s></s>", "<s>q</s>", "[42]$"), settings)
    event = tree.segments[2].event
    assert event is not None
    assert (tree.segments[2].source, event.status, event.executed) == (Source.NOTICE, "empty_args", False)
    assert "The call was empty. Tools: search, python." in texts(tree)[0]
    assert "No tool calls left" in texts(tree)[0]
    assert tree.tool_calls == 0


async def test_zero_calls_allowed_means_the_notice_comes_first() -> None:
    tree = await grow(by_turn("<s>q</s>", "[42]$"), GRPO.model_copy(update={"max_calls": 0}))
    assert texts(tree) == ["why?<s>q</s>!No tool calls left. Answer now.![42]$"] * 2


async def test_infrastructure_failure_is_not_shown_and_costs_no_trajectory() -> None:
    broken = ToyTool("search", reply=lambda text: ToolResult(ToolStatus.INFRA_ERROR, "secret trace"))
    tree = await grow(DOUBTS, arpo(total=4, initial=2), tools=toolbox(broken))
    assert len(tree.leaves) == 4
    for leaf in tree.leaves:
        last = tree.segments[leaf]
        assert last.finish is Finish.ERROR
        assert last.event is not None
        assert (last.event.status, last.event.executed) == ("infra_error", False)
    assert texts(tree) == ["why?abcd<s>q</s>"] * 4


async def test_a_tool_that_raises_is_an_infrastructure_failure() -> None:
    def explode(text: str) -> str:
        raise RuntimeError("no disk")

    tree = await grow(by_turn("<s>q</s>"), GRPO, tools=toolbox(ToyTool("search", reply=explode)))
    assert [tree.segments[leaf].finish for leaf in tree.leaves] == [Finish.ERROR] * 2


async def test_a_refused_call_is_a_notice() -> None:
    limited = ToyTool("search", reply=lambda text: ToolResult(ToolStatus.LIMIT, "search budget used up"))
    tree = await grow(by_turn("<s>q</s>", "[42]$"), GRPO, tools=toolbox(limited))
    notice = tree.segments[2]
    assert notice.source is Source.NOTICE
    assert notice.event is not None
    assert not notice.event.executed
    assert "!search budget used up!" in texts(tree)[0]
    assert tree.decisions == ()


async def test_long_results_keep_head_and_tail() -> None:
    long = ToyTool("search", reply=lambda text: "H" * 50 + "T" * 50)
    tree = await grow(
        by_turn("<s>q</s>", "[42]$"), GRPO.model_copy(update={"max_result_tokens": 17}), tools=toolbox(long)
    )
    assert decode(tree.segments[2].tokens.tolist()) == "{" + "H" * 8 + "T" * 7 + "}"


async def test_result_that_leaves_no_room_ends_the_trajectory_and_counts() -> None:
    script = by_turn("<s>q</s>", "[42]$")
    fits = await grow(script, GRPO.model_copy(update={"max_tokens": 8 + 3 + 1}))
    assert texts(fits) == ["why?<s>q</s>{Q}["] * 2
    assert fits.segments[fits.leaves[0]].finish is Finish.LENGTH
    too_long = await grow(script, GRPO.model_copy(update={"max_tokens": 8 + 3}))
    last = too_long.segments[too_long.leaves[0]]
    assert texts(too_long) == ["why?<s>q</s>"] * 2
    assert last.finish is Finish.LENGTH
    assert too_long.tool_calls == 2


async def test_call_without_room_for_any_result_is_not_executed() -> None:
    search = ToyTool("search")
    tree = await grow(by_turn("<s>q</s>"), GRPO.model_copy(update={"max_tokens": 8}), tools=toolbox(search))
    assert search.calls == []
    assert tree.tool_calls == 0
    assert tree.segments[tree.leaves[0]].finish is Finish.LENGTH


async def test_repeated_calls_are_marked_on_their_path_only() -> None:
    again = by_turn("<s>q</s>", [("abcd", 5.0), ("<s>q</s>", 0.1)], "<p>q</p>", "[42]$")
    tree = await grow(again, arpo())
    marks = [(s.event.name, s.event.redundant) for s in tree.segments if s.event]
    assert marks == [("search", False), ("search", True), ("python", False), ("search", True), ("python", False)]


async def test_tools_hear_where_they_are_called() -> None:
    search = ToyTool("search")
    await grow(by_turn("<s>q</s>", "<s>r</s>", "[42]$"), GRPO, tools=toolbox(search, ToyTool("python")))
    heard = sorted((c.path, c.call_index, c.task_id) for _, c in search.calls)
    assert heard == [("r0", 0, "toy"), ("r0", 1, "toy"), ("r1", 0, "toy"), ("r1", 1, "toy")]
    assert len({c.seed for _, c in search.calls}) == 2, "equal histories, equal seeds"


# A first trajectory that decides how many there are


@pytest.mark.parametrize(
    ("after", "roots"), [(0.1, 4), (0.1 - math.log(3), 6), (0.1 + math.log(3), 2), (9.0, 2), (-9.0, 8)]
)
async def test_the_monitored_trajectory_sets_n(after: float, roots: int) -> None:
    """N = 8 sigmoid(0.1 - H_tool), at least the monitored one and one that may branch."""
    asked = engine(by_turn("abcd<s>q</s>", [("abcd", after), ("efgh[42]$", 0.1)]))
    rule = AepoRule(sharpness=1.0, base_probability=1.0, entropy_weight=0.0, threshold=0.5)
    tree = await grow(asked, RolloutSettings(total=8, initial=3, branching=rule, max_tokens=400))
    assert len(tree.children[0]) - tree.top_ups == roots
    alone = [prefix for prefix, _, _ in asked.requests[:2]]
    assert [len(prefix) for prefix in alone] == [4, 4 + len("abcd<s>q</s>{Q}")]  # r0 was over before the next began
    first = next(d for d in tree.decisions)
    assert (first.opened, first.wanted) == (0, 1)
    assert sum(d.opened for d in tree.decisions) == 8 - roots - tree.top_ups


async def test_branchings_in_a_row_cost_aepo_its_probability() -> None:
    script = by_turn("abcd<s>q</s>", *[[("ab<s>", 1.0), (f"q{turn}</s>", 0.1)] for turn in range(3)], "abcd[42]$")
    rule = AepoRule(monitor=False, penalty=0.3, base_probability=0.6, entropy_weight=0.0, threshold=0.35)
    tree = await grow(script, RolloutSettings(total=40, initial=1, branching=rule, max_tokens=400))
    firsts = [d for d in tree.decisions if d.node in tree.ancestry(tree.leaves[0])]
    assert [round(d.probability, 2) for d in firsts] == [0.6, 0.42, 0.24, 0.6]
    assert [d.wanted for d in firsts] == [1, 1, 0, 1]


# Start-up


def test_entropy_rules_need_an_engine_with_entropies() -> None:
    mute = Capabilities(entropy="none")
    with pytest.raises(ConfigError, match=r"rollout\.branching\.type"):
        check(RolloutSettings(), mute)
    with pytest.raises(ConfigError, match=r"rollout\.branching\.type"):
        check(RolloutSettings(branching=AbsoluteAndDeltaRule(entropy_weight=0.0)), mute)
    check(RolloutSettings(branching=BernoulliRule(entropy_weight=0.0)), mute)
    check(RolloutSettings(total=8, initial=8, branching=NoBranching()), mute)


def test_estimates_from_sampled_tokens_need_a_window() -> None:
    sampled = Capabilities(entropy="sampled")
    with pytest.raises(ConfigError, match=r'at = "state" reads the entropy of one token'):
        check(RolloutSettings(branching=EntropyRule(at="state")), sampled)
    check(RolloutSettings(branching=EntropyRule(at="state", lookahead=True)), sampled)
    check(RolloutSettings(branching=EntropyRule()), sampled)
    check(RolloutSettings(branching=UniformRule(at="state")), sampled)


def test_contradictions_with_other_settings_are_refused() -> None:
    able = Capabilities(entropy="exact")
    with pytest.raises(ConfigError, match="vocabulary of 1"):
        check(RolloutSettings(), able, vocab_size=1)
    with pytest.raises(ConfigError, match=r"entropy\.min_tokens = 2"):
        check(RolloutSettings(branching=EntropyRule(at="state")), able, entropy=EntropySettings(min_tokens=2))
    with pytest.raises(ConfigError, match="lookahead"):
        check(RolloutSettings(branching=BernoulliRule(entropy_weight=0, at="state", lookahead=True)), able)
    with pytest.raises(ConfigError, match="without tools"):
        check(RolloutSettings(), able, tools=())


async def test_prompt_without_room_is_named() -> None:
    small = engine(by_turn("[42]$"), capabilities=Capabilities(entropy="exact", max_context=4))
    with pytest.raises(DataError, match="task toy: its prompt of 4 tokens"):
        await grow(small, GRPO)


async def test_response_budget_is_what_the_context_leaves() -> None:
    small = engine(by_turn("abcdefgh[42]$"), capabilities=Capabilities(entropy="exact", max_context=10))
    tree = await grow(small, GRPO)
    assert [len(path) for path in tree.paths()] == [10, 10]


async def test_without_entropies_decisions_hold_nan_and_random_branching_works() -> None:
    mute = engine(DOUBTS, capabilities=Capabilities(entropy="none"))
    rule = BernoulliRule(base_probability=1.0, entropy_weight=0.0)
    tree = await grow(mute, arpo().model_copy(update={"branching": rule}))
    (decision,) = tree.decisions
    assert (decision.opened, decision.probability) == (1, 1.0)
    assert math.isnan(decision.h_root)
    assert math.isnan(decision.delta)


# Failures and order


class UnpluggedError(Exception):
    """What a test's engine raises."""


async def test_an_engine_failure_cancels_the_group_and_is_raised_as_it_is() -> None:
    cancelled = 0

    class Fails(ScriptedEngine):
        async def sample(self, tokens, params, seed):
            nonlocal cancelled
            if len(self.requests) == 3:
                raise UnpluggedError("cable")
            try:
                segment = await super().sample(tokens, params, seed)
                await asyncio.sleep(60)
                return segment
            except asyncio.CancelledError:
                cancelled += 1
                raise

    fails = Fails(by_turn("[42]$"), decode, end_tokens=ToyDialect.end_tokens)
    with pytest.raises(UnpluggedError, match="cable"):
        await rollout_many(
            [ask("why?", "1", id="a"), ask("how?", "2", id="b")],
            agent(fails),
            settings=GRPO,
            entropy=EntropySettings(),
            seed_parts=(0,),
        )
    assert cancelled == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_a_rollout_leaves_no_task() -> None:
    slow = engine(by_turn("[42]$"), delay=lambda prefix, seed: 60.0)
    running = asyncio.create_task(grow(slow, GRPO))
    while not slow.requests:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    "settings",
    [
        RolloutSettings(total=6, initial=6, branching=NoBranching(), max_tokens=150),
        RolloutSettings(total=16, initial=4, max_tokens=150),
        RolloutSettings(total=6, initial=4, max_tokens=150),
        RolloutSettings(total=7, initial=3, branches=2, max_tokens=150, budget=BudgetSettings(max_forks=1)),
        RolloutSettings(total=7, initial=4, max_tokens=150, branching=BernoulliRule(at="state", lookahead=True)),
    ],
    ids=["none", "ample", "contended", "limited depth", "bernoulli with look-ahead"],
)
async def test_the_tree_is_the_same_whatever_finishes_first(settings: RolloutSettings) -> None:
    for seed in range(6):
        plain = await grow(babble, settings, seed=seed)
        for shuffle in (3, 7):
            late = engine(babble, delay=lambda prefix, s, m=shuffle: (s % m) / 2000)
            slow = [ToyTool(name, delay=lambda c, m=shuffle: (c.seed % m) / 2000) for name in ("search", "python")]
            shuffled = await grow(late, settings, tools=toolbox(*slow), seed=seed)
            assert same(shuffled, plain)


async def test_many_prompts_keep_their_order_and_the_bound() -> None:
    in_flight: set[str] = set()
    most = 0

    class Watched(ScriptedEngine):
        async def sample(self, tokens, params, seed):
            nonlocal most
            in_flight.add(decode(tokens))
            most = max(most, len(in_flight))
            segment = await super().sample(tokens, params, seed)
            in_flight.discard(decode(tokens))
            return segment

    watched = Watched(by_turn("[42]$"), decode, end_tokens=ToyDialect.end_tokens, delay=lambda prefix, seed: 0.001)
    names = [f"{letter}?" for letter in "abcdefg"]
    trees = await rollout_many(
        [ask(name, "42", id=name) for name in names],
        agent(watched),
        settings=GRPO.model_copy(update={"concurrency": 3}),
        entropy=EntropySettings(),
        seed_parts=("s",),
    )
    assert [tree.task_id for tree in trees] == names
    assert [tree.meta["question"] for tree in trees] == names
    assert most == 3


async def test_a_task_met_twice_draws_twice() -> None:
    trees = await rollout_many(
        [ask("why?", "42", id="a", family="lookup")] * 2,
        agent(babble),
        settings=RolloutSettings(total=8, initial=8, branching=NoBranching(), max_tokens=100),
        entropy=EntropySettings(),
        seed_parts=("s",),
    )
    assert texts(trees[0]) != texts(trees[1])
    assert trees[0].meta == {"family": "lookup", "question": "why?", "gold": "42"}


async def test_greedy_single_trajectory() -> None:
    asked = engine(by_turn("<s>q</s>", "[42]$"))
    tree = await grow(asked, RolloutSettings(total=1, initial=1, temperature=0, branching=NoBranching()))
    assert texts(tree) == ["why?<s>q</s>{Q}[42]$"]
    assert {params.temperature for _, params, _ in asked.requests} == {0.0}
    assert np.all(tree.multiplicity == 1)
