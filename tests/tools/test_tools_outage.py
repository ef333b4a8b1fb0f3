"""What a tool that is down costs: the trajectory, a pause, the step, or the group; in the tool box and in a rollout."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError
from rollout_fakes import ToyTool, by_turn, current, grow, steps
from tool_fakes import FakeClock, ask, box

from arpo.errors import ToolDownError
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.tools.base import ToolContext, ToolResult, ToolStatus, TransientError
from arpo.tools.breaker import DROP_GROUP
from arpo.tools.limits import Limit
from arpo.tools.settings import ImportSettings
from arpo.tools.toolbox import ToolBox
from arpo.tree import Finish

GRPO = RolloutSettings(total=4, initial=4, branching=NoBranching(), max_tokens=200)


class Service:
    """Down until a time on the clock."""

    def __init__(self, clock: FakeClock, back: float, error: Exception | None = None) -> None:
        self.clock, self.back = clock, clock.time + back
        self.error = error or OSError("refused")
        self.calls: list[float] = []

    async def __call__(self, arguments: Any, context: ToolContext) -> str:
        self.calls.append(self.clock.time)
        if self.clock.time < self.back:
            raise self.error
        return "up"


def served(outage: str, back: float, *, idempotent: bool = True, error: Exception | None = None, **more: Any) -> Any:
    clock = FakeClock()
    service = Service(clock, back, error)
    limits = {"breaker_after": 2, "breaker_rest": 30.0, "retries": 0, "outage": outage, **more}
    return service, box(service, more={"idempotent": idempotent}, clock=clock, **limits), clock


async def test_fail_step_ends_it_with_the_call_that_was_one_too_many() -> None:
    service, tools, clock = served("fail_step", 100)
    assert (await ask(tools)).status is ToolStatus.INFRA_ERROR
    for _ in range(2):
        with pytest.raises(
            ToolDownError, match=r"'t' is down \(2 calls in a row failed.*outage = 'fail_step'"
        ) as caught:
            await ask(tools)
        assert 'set tools.outage = "trajectory"' in str(caught.value)
    assert (len(service.calls), caught.value.exit_code) == (2, 6)
    clock.time += 200
    assert (await ask(tools)).text == "up"


async def test_drop_group_marks_those_that_met_the_outage_and_no_others() -> None:
    service, tools, _ = served("drop_group", 100)
    first, second, third = [await ask(tools) for _ in range(3)]
    assert [one.status for one in (first, second, third)] == [ToolStatus.INFRA_ERROR] * 3
    assert DROP_GROUP not in first.data
    assert second.data[DROP_GROUP] is third.data[DROP_GROUP] is True
    assert len(service.calls) == 2


async def test_pause_waits_off_the_clock_and_loses_nobody_who_may_be_called_again() -> None:
    service, tools, clock = served("pause", 95, error=TransientError("503"))
    begin = clock.time
    results = await asyncio.gather(*(ask(tools) for _ in range(5)))
    lost = [one for one in results if one.status is not ToolStatus.OK]
    assert len(lost) == 1, "the first failure, before the tool counted as down"
    assert all(one.latency < 5 for one in results)
    tries = [time - begin for time in service.calls if time < service.back]
    assert len(tries) <= 5 + 3, "one try per rest, not one per call"
    assert clock.time >= service.back
    assert tools.stats["t"].waited >= 90
    assert tools.stats["t"].openings == 1


async def test_pause_does_not_repeat_what_must_not_be_repeated() -> None:
    service, tools, _ = served("pause", 50, idempotent=False)
    assert [(await ask(tools)).status for _ in range(2)] == [ToolStatus.INFRA_ERROR] * 2
    third = await ask(tools)
    assert (third.status, len(service.calls)) == (ToolStatus.INFRA_ERROR, 3), "it waited, tried, and failed"
    assert (await ask(tools)).text == "up"


async def test_pause_has_an_end() -> None:
    service, tools, clock = served("pause", 1e9, error=TransientError("503"), outage_patience=100.0)
    await ask(tools)
    begin = clock.time
    with pytest.raises(ToolDownError, match="it was waited for 100 s"):
        await ask(tools)
    assert 100 <= clock.time - begin < 130
    assert [round(time - begin) for time in service.calls[1:]] == [0, 30, 60, 90]


async def test_a_pause_can_be_cancelled() -> None:
    class Standing(FakeClock):
        async def sleep(self, seconds: float) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    clock = Standing()
    service = Service(clock, 100)
    tools = box(service, clock=clock, breaker_after=1, outage="pause")
    await ask(tools)
    waiting = asyncio.ensure_future(ask(tools))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    clock.time += 200
    assert (await ask(tools)).text == "up"


# In a rollout


def down() -> ToyTool:
    def reply(text: str) -> ToolResult:
        raise OSError("refused")

    return ToyTool("search", reply)


def rollout_box(outage: Any, after: int = 2) -> ToolBox:
    return ToolBox([down()], {"search": Limit(breaker_after=after, outage=outage)})


TURNS = by_turn("abcd<s>q</s>", "[42]$")


@pytest.mark.parametrize("outage", ["trajectory", "drop_group"])
async def test_no_trajectory_that_met_an_outage_has_a_reward(outage: str) -> None:
    settings = GRPO.model_copy(update={"share_calls": "off"})
    tree = await grow(TURNS, settings, tools=rollout_box(outage))
    assert [tree.segments[leaf].finish for leaf in tree.leaves] == [Finish.ERROR] * 4


async def test_a_pause_costs_a_rollout_nothing_but_time() -> None:
    clock = FakeClock()
    back = clock.time + 60

    def reply(text: str) -> ToolResult:
        if clock.time < back:
            raise TransientError("500")
        return ToolResult(ToolStatus.OK, "found")

    tool = ToyTool("search", reply)
    tool.idempotent = True  # type: ignore[attr-defined]
    limit = Limit(breaker_after=1, breaker_rest=7.0, outage="pause")
    tools = ToolBox([tool], {"search": limit}, clock)
    tree = await grow(TURNS, GRPO.model_copy(update={"share_calls": "off"}), tools=tools)
    assert [tree.segments[leaf].finish for leaf in tree.leaves] == [Finish.STOP] * 4
    assert clock.time >= back
    assert tools.stats["search"].openings == 1


@pytest.mark.parametrize(("share", "after"), [("off", 2), ("group", 1)])
async def test_a_step_that_is_to_fail_fails_also_for_those_who_wait_for_an_equal_call(share: str, after: int) -> None:
    settings = GRPO.model_copy(update={"share_calls": share})
    with pytest.raises(ToolDownError, match="tool 'search' is down"):
        await grow(TURNS, settings, tools=rollout_box("fail_step", after))


async def test_a_drop_takes_those_along_that_needed_no_tool() -> None:
    def continuation(prefix: tuple[int, ...], seed: int) -> Any:
        turn, said = current(prefix)
        return steps([["<s>q</s>", "[42]$"][seed % 2], "[42]$"][min(turn, 1)])[said:]

    settings = GRPO.model_copy(update={"share_calls": "off"})
    alone = await grow(continuation, settings, tools=ToolBox([down()], {"search": Limit(breaker_after=1)}))
    group = await grow(
        continuation, settings, tools=ToolBox([down()], {"search": Limit(breaker_after=1, outage="drop_group")})
    )
    ends = [[tree.segments[leaf].finish for leaf in tree.leaves] for tree in (alone, group)]
    assert Finish.STOP in ends[0]
    assert Finish.ERROR in ends[0]
    assert set(ends[1]) == {Finish.ERROR}


# Settings


def test_settings_reach_the_limit() -> None:
    own = {
        "retries": 5,
        "breaker_after": 4,
        "breaker_rest": 7.0,
        "outage": "pause",
        "outage_patience": 9.0,
        "timeout": 3.0,
        "max_chars": 200,
        "concurrency": 2,
        "rate": 1.5,
    }
    assert ImportSettings(path="a:b", **own).limit() == Limit(**own)
    assert ImportSettings(path="a:b").limit({"timeout": 4, "retries": 0}) == Limit(timeout=4, retries=0)
    assert ImportSettings(path="a:b", timeout=2).limit({"timeout": 4}) == Limit(timeout=2)
    assert ImportSettings(path="a:b").limit() == Limit(timeout=30.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"breaker_after": 0},
        {"breaker_rest": 0},
        {"outage": "ignore"},
        {"outage_patience": float("inf")},
        {"breaker_after": None, "outage": "pause"},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ImportSettings(path="a:b", **wrong)
