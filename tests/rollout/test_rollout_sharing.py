"""Equal calls of a group run once, are counted as requested and as run, and change nothing else."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rollout_fakes import ToyTool, by_turn, current, engine, grow, steps, texts, toolbox

from arpo.engine.scripted import Scripted
from arpo.rollout.settings import NoBranching, RolloutSettings, UniformRule
from arpo.rollout.sharing import SharedCalls
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tree import RolloutTree

TWICE = by_turn("<s>q</s>", "look<s>q</s>", "[42]$")
FLAT = RolloutSettings(total=4, initial=4, branching=NoBranching(), max_tokens=100)
STATE = UniformRule(at="state")


def undecided(prefix: tuple[int, ...], seed: int) -> Sequence[Scripted]:
    """One of two calls, or an answer after the second result: histories meet often."""
    turn, said = current(prefix)
    luck = random.Random(seed).random()
    whole = f"[{luck:.1f}]$" if turn == 2 else "ab<s>q</s>" if luck < 0.5 else "ab<p>q</p>"
    return steps(whole if said < 3 else "".join(map(chr, prefix[-said:])) + whole[said:])[said:]


def stateless(name: str = "search", **more: object) -> ToyTool:
    tool = ToyTool(name, **more)  # type: ignore[arg-type]
    tool.stateless = True  # type: ignore[attr-defined]
    return tool


def without_costs(tree: RolloutTree) -> RolloutTree:
    """The tree without what says who paid and how long it took."""
    events = [s.event and replace(s.event, latency=0.0, shared=False) for s in tree.segments]
    return replace(
        tree, segments=tuple(replace(s, event=event) for s, event in zip(tree.segments, events, strict=True))
    )


async def test_equal_histories_run_once() -> None:
    tool = ToyTool("search")
    tree = await grow(TWICE, FLAT, tools=toolbox(tool))
    assert [text for text, _ in tool.calls] == ["q", "q"]  # once after the question, once after the result
    assert tree.requested_calls == 8
    assert tree.tool_calls == 2
    assert texts(tree) == ["why?<s>q</s>{Q}look<s>q</s>{Q}[42]$"] * 4


async def test_stateless_tools_are_shared_whatever_came_before() -> None:
    tool = stateless()
    tree = await grow(TWICE, FLAT, tools=toolbox(tool))
    assert len(tool.calls) == 1
    assert (tree.tool_calls, tree.requested_calls) == (1, 8)
    per_histories = await grow(TWICE, FLAT.model_copy(update={"share_calls": "histories"}), tools=toolbox(stateless()))
    assert per_histories.tool_calls == 2


async def test_off_runs_every_call() -> None:
    tool = stateless()
    tree = await grow(TWICE, FLAT.model_copy(update={"share_calls": "off"}), tools=toolbox(tool))
    assert len(tool.calls) == 8 == tree.tool_calls == tree.requested_calls


async def test_those_who_come_while_it_runs_wait_for_it() -> None:
    tool = ToyTool("search", delay=lambda context: 0.01)
    tree = await grow(by_turn("<s>q</s>", "[42]$"), FLAT, tools=toolbox(tool))
    assert len(tool.calls) == 1
    assert tree.tool_calls == 1
    events = [s.event for s in tree.segments if s.event]
    assert [event.shared for event in events] == [False, True, True, True]
    assert [event.latency > 0 for event in events] == [True, False, False, False]


@pytest.mark.parametrize("sharing", ["histories", "group"])
async def test_sharing_changes_what_is_paid_and_nothing_else(sharing: str) -> None:
    """A tool that answers by its seed, as random ones do, answers the same whether it is shared or not."""

    def tools() -> list[ToyTool]:
        made = [stateless("search"), ToyTool("python")]
        for tool in made:
            tool.call = by_seed  # type: ignore[method-assign]
        return made

    async def by_seed(arguments: object, context: ToolContext) -> ToolResult:
        return ToolResult(ToolStatus.OK, str(context.seed % 7))

    paid = 0
    for seed in range(8):
        settings = RolloutSettings(total=8, initial=3, max_tokens=120, branching=STATE)
        trees = [
            await grow(undecided, settings.model_copy(update={"share_calls": how}), tools=toolbox(*tools()), seed=seed)
            for how in ("off", sharing)
        ]
        assert without_costs(trees[0]) == without_costs(trees[1])
        assert trees[0].tool_calls == trees[1].requested_calls
        paid += trees[0].tool_calls - trees[1].tool_calls
    assert paid > 0


async def test_the_cost_stands_with_the_first_in_tree_order_whoever_ran() -> None:
    """The first root's engine is slow, so another trajectory makes the call; the tree says the same."""
    settings = RolloutSettings(total=6, initial=3, max_tokens=100, branching=STATE)
    quick = await grow(TWICE, settings, tools=toolbox(stateless()))
    for modulus in (2, 3, 5):
        late = engine(TWICE, delay=lambda prefix, seed, m=modulus: (seed % m) / 500)
        shuffled = await grow(late, settings, tools=toolbox(stateless()))
        flags = [s.event.shared for s in shuffled.segments if s.event]
        assert flags == [s.event.shared for s in quick.segments if s.event]


async def test_failures_answer_those_who_waited_and_nobody_later() -> None:
    answers = iter([ToolStatus.TIMEOUT, ToolStatus.INFRA_ERROR, ToolStatus.OK, ToolStatus.OK])
    tool = ToyTool("search", reply=lambda text: ToolResult(next(answers), "text"), delay=lambda context: 0.005)
    calls = SharedCalls(toolbox(tool), "group", (0,))

    async def ask() -> ToolResult:
        return (await calls.call([1, 2], "search", {"text": "q"}, "q", ToolContext())).result

    assert [r.status for r in await asyncio.gather(ask(), ask())] == [ToolStatus.TIMEOUT] * 2
    assert [r.status for r in await asyncio.gather(ask(), ask())] == [ToolStatus.INFRA_ERROR] * 2
    assert [(await ask()).status, (await ask()).status] == [ToolStatus.OK] * 2
    assert len(tool.calls) == 3


async def test_a_cancelled_first_call_leaves_no_answer_behind() -> None:
    tool = ToyTool("search", delay=lambda context: 30.0 if len(tool.calls) == 1 else 0.0)
    calls = SharedCalls(toolbox(tool), "group", (0,))
    first = asyncio.create_task(calls.call([1], "search", {"text": "q"}, "q", ToolContext()))
    while not tool.calls:
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await calls.call([1], "search", {"text": "q"}, "q", ToolContext())).result.status is ToolStatus.OK
