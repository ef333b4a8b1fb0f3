"""Which failed call is made again, when, and what its tries may cost."""

import asyncio
from typing import Any

import pytest
from tool_fakes import HERE, FakeClock, ask, box, tool

from arpo.retry import backoff
from arpo.seeds import uniform
from arpo.tools.base import ToolContext, ToolError, ToolResult, ToolStatus, TransientError
from arpo.tools.retry import LONGEST, is_idempotent, pause
from arpo.tools.toolbox import Limit, ToolBox


class Flaky:
    """Raises what it is given, one after another, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self, arguments: Any, context: ToolContext) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "at last"


class Recording(FakeClock):
    """Remembers how long it was slept for."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.pauses.append(seconds)
        await super().sleep(seconds)


def draw(attempt: int, context: ToolContext = HERE) -> float:
    return uniform(context.seed, context.task_id, context.path, context.call_index, "t", attempt, "retry")


IDEMPOTENT = {"idempotent": True}


async def test_a_passing_failure_is_outlived_with_full_jitter_of_the_calls_own() -> None:
    flaky, clock = Flaky(TransientError("429"), TransientError("reset")), Recording()
    tools = box(flaky, more=IDEMPOTENT, clock=clock)
    assert (await ask(tools)).text == "at last"
    assert clock.pauses == [backoff(0, draw(0)), backoff(1, draw(1))]
    assert 0 < clock.pauses[0] < 0.5
    assert clock.pauses[1] < 1.0
    stats = tools.stats["t"]
    assert (flaky.calls, stats.calls, stats.ok, stats.retries) == (3, 1, 1, 2)
    assert stats.waited == pytest.approx(sum(clock.pauses))


async def test_equal_runs_wait_equally_and_different_calls_do_not_wait_together() -> None:
    error = TransientError("busy")
    assert pause(error, 0, "t", HERE) == pause(error, 0, "t", HERE)
    others = [ToolContext("task 7", f"r{number}") for number in range(20)]
    assert len({pause(error, 0, "t", other) for other in others}) == 20


@pytest.mark.parametrize("after", [0.0, 7.0, LONGEST])
async def test_what_the_other_side_asks_for_comes_before_the_jitter(after: float) -> None:
    clock = Recording()
    tools = box(Flaky(TransientError("429", after=after)), more=IDEMPOTENT, clock=clock)
    assert (await ask(tools)).status is ToolStatus.OK
    assert clock.pauses == [after + backoff(0, draw(0))]


async def test_who_asks_for_more_patience_than_a_call_has_is_not_waited_for() -> None:
    flaky, clock = Flaky(TransientError("503", after=LONGEST + 1)), Recording()
    tools = box(flaky, more=IDEMPOTENT, clock=clock)
    result = await ask(tools)
    assert (result.status, result.data) == (
        ToolStatus.INFRA_ERROR,
        {"error": "TransientError: 503", "fault": "transient"},
    )
    assert (flaky.calls, clock.pauses) == (1, [])


@pytest.mark.parametrize(
    ("more", "error", "calls"),
    [
        ({"idempotent": True}, TransientError("x"), 2),
        ({"stateless": True}, TransientError("x"), 2),
        ({"stateless": True, "idempotent": False}, TransientError("x"), 1),
        ({}, TransientError("x"), 1),
        ({"idempotent": True}, OSError("x"), 1),
        ({"idempotent": True}, TimeoutError("x"), 1),
        ({"idempotent": True}, ToolError("x"), 1),
    ],
)
async def test_only_passing_failures_of_tools_that_may_be_called_again(
    more: dict[str, Any], error: Exception, calls: int
) -> None:
    flaky = Flaky(error)
    await ask(box(flaky, more=more, clock=FakeClock()))
    assert flaky.calls == calls
    assert is_idempotent(tool(flaky, **more)) == (more.get("idempotent", more.get("stateless", False)))


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_so_many_tries_and_no_more(retries: int) -> None:
    flaky = Flaky(*(TransientError(str(number)) for number in range(10)))
    tools = box(flaky, more=IDEMPOTENT, retries=retries, clock=FakeClock())
    result = await ask(tools)
    assert (result.status, result.data["error"]) == (ToolStatus.INFRA_ERROR, f"TransientError: {retries}")
    assert (flaky.calls, tools.stats["t"].retries, tools.stats["t"].infra_errors) == (retries + 1, retries, 1)


async def test_a_result_is_never_asked_for_again_whatever_it_says() -> None:
    for status in ToolStatus:
        calls = []

        async def call(arguments: Any, context: ToolContext, status: ToolStatus = status, calls: Any = calls) -> Any:
            calls.append(1)
            return ToolResult(status, "")

        await ask(box(call, more=IDEMPOTENT))
        assert calls == [1]


async def test_every_try_has_the_whole_time_limit_and_pauses_are_not_counted() -> None:
    """Three tries of 0.15 s with a limit of 0.25 s, and pauses of seconds on a clock that nobody waits for."""
    times = 3

    async def call(arguments: Any, context: ToolContext) -> str:
        nonlocal times
        times -= 1
        await asyncio.sleep(0.15)
        if times:
            raise TransientError("again", after=30)
        return "done"

    tools = box(call, more=IDEMPOTENT, timeout=0.25, clock=FakeClock())
    result = await ask(tools)
    assert (result.status, result.text) == (ToolStatus.OK, "done")
    assert 0.45 <= result.latency < 30
    assert tools.stats["t"].waited >= 60


async def test_a_try_that_runs_out_of_time_is_the_last() -> None:
    calls = []

    async def call(arguments: Any, context: ToolContext) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise TransientError("again")
        await asyncio.sleep(60)
        return "late"

    result = await ask(box(call, more=IDEMPOTENT, timeout=0.05, clock=FakeClock()))
    assert (result.status, result.text, len(calls)) == (ToolStatus.TIMEOUT, "Timed out after 0.05 s.", 2)


async def test_a_pause_keeps_no_place_and_a_try_takes_a_token() -> None:
    order: list[str] = []

    async def call(arguments: Any, context: ToolContext) -> str:
        order.append(context.path)
        if order == ["a"]:
            raise TransientError("again", after=5)
        return context.path

    clock = FakeClock()
    tools = ToolBox([tool(call, idempotent=True)], {"t": Limit(concurrency=1, rate=1.0)}, clock)
    begin = clock.time
    await asyncio.gather(ask(tools, ToolContext(path="a")), ask(tools, ToolContext(path="b")))
    assert order == ["a", "b", "a"]
    assert clock.time - begin >= 5
    assert tools._entries["t"].gate._places._free == 1  # type: ignore[union-attr]


async def test_a_caller_that_is_cancelled_between_two_tries_leaves_nothing_behind() -> None:
    class Forever(FakeClock):
        async def sleep(self, seconds: float) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    flaky = Flaky(TransientError("again"))
    tools = box(flaky, more=IDEMPOTENT, concurrency=1, clock=Forever())
    caller = asyncio.ensure_future(ask(tools))
    while not tools.stats["t"].retries:
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert tools._entries["t"].running == 0
    assert (await ask(tools)).text == "at last"


async def test_tools_in_threads_are_tried_again_too() -> None:
    calls = []

    def call(arguments: Any, context: ToolContext) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise TransientError("again")
        return "done"

    tools = box(call, more=IDEMPOTENT, clock=FakeClock())
    assert (await ask(tools)).text == "done"
    await tools.close()
