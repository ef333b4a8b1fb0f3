"""A tool that fails again and again is left alone for a while; then one call tries whether it is back."""

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_fakes import FakeClock, ask, box

from arpo.retry import Circuit
from arpo.tools.base import ToolContext, ToolError, ToolResult, ToolStatus, TransientError
from arpo.tools.toolbox import ToolBox


class Service:
    """Up, or down in one of several ways. `calls`: how often it was really called."""

    def __init__(self) -> None:
        self.down: Exception | ToolResult | None = OSError("refused")
        self.calls = 0

    async def __call__(self, arguments: Any, context: ToolContext) -> Any:
        self.calls += 1
        await asyncio.sleep(0)
        if isinstance(self.down, Exception):
            raise self.down
        return self.down or "up"


def served(**limits: Any) -> tuple[Service, ToolBox, FakeClock]:
    service, clock = Service(), FakeClock()
    return service, box(service, clock=clock, **{"breaker_after": 3, "breaker_rest": 30.0, **limits}), clock


async def statuses(tools: ToolBox, times: int) -> list[ToolStatus]:
    return [(await ask(tools)).status for _ in range(times)]


def open_now(tools: ToolBox) -> bool:
    return tools._entries["t"].breaker.down


async def test_closed_open_half_open_closed(caplog: pytest.LogCaptureFixture) -> None:
    service, tools, clock = served()
    with caplog.at_level(logging.WARNING):
        assert await statuses(tools, 5) == [ToolStatus.INFRA_ERROR] * 5
        assert service.calls == 3
        clock.time += 29.9
        await ask(tools)
        assert service.calls == 3
        clock.time += 0.1
        await ask(tools)
        assert service.calls == 4, "one may try"
        await ask(tools)
        assert service.calls == 4, "and it failed, so everybody rests again"
        clock.time += 30
        service.down = None
        assert await statuses(tools, 3) == [ToolStatus.OK] * 3
    stats = tools.stats["t"]
    assert (stats.openings, stats.faults["refused"], stats.faults["exception"]) == (1, 4, 4)
    assert "tool t is down: 3 calls in a row failed, the last with OSError: refused; outage = trajectory" in caplog.text
    assert "tool t is up again" in caplog.text


async def test_a_refused_call_says_why_and_shows_nothing() -> None:
    _, tools, _ = served()
    await statuses(tools, 3)
    result = await ask(tools)
    assert (result.status, result.text, result.latency) == (ToolStatus.INFRA_ERROR, "", 0.0)
    assert result.data["error"].startswith("not called, because it is down: 3 calls in a row failed")


@pytest.mark.parametrize(
    ("between", "opens"),
    [
        (None, False),
        (ToolError("your fault"), False),
        (ToolResult(ToolStatus.TOOL_ERROR, "your fault"), False),
        (ToolResult(ToolStatus.OK, "old", cached=True), True),
        (ToolResult(ToolStatus.TIMEOUT, ""), True),
        (ToolResult(ToolStatus.INFRA_ERROR, ""), True),
        (object(), True),
    ],
)
async def test_what_ends_a_row_of_failures_and_what_says_nothing(between: Any, opens: bool) -> None:
    service, tools, _ = served()
    await statuses(tools, 2)
    service.down = between
    await ask(tools)
    service.down = OSError("refused")
    await ask(tools)
    assert open_now(tools) is opens


async def test_wrong_arguments_and_failures_that_tell_nothing_are_no_outage() -> None:
    class MissError(Exception):
        outage = False
        fault = "cache_miss"

    service, tools, _ = served()
    service.down = MissError("not in the cache")
    await statuses(tools, 9)
    assert not open_now(tools)
    assert tools.stats["t"].faults == {"cache_miss": 9}


async def test_tries_of_one_call_are_one_failure() -> None:
    service = Service()
    service.down = TransientError("503")
    tools = box(service, more={"idempotent": True}, clock=FakeClock(), breaker_after=2, retries=3)
    await ask(tools)
    assert (service.calls, open_now(tools)) == (4, False)
    await ask(tools)
    assert (service.calls, open_now(tools)) == (8, True)


async def test_who_tries_for_the_others_tries_once() -> None:
    service = Service()
    service.down = TransientError("503")
    clock = FakeClock()
    tools = box(service, more={"idempotent": True}, clock=clock, breaker_after=1, retries=3)
    await ask(tools)
    before, clock.time = service.calls, clock.time + 30
    await ask(tools)
    assert service.calls == before + 1


async def test_only_one_of_many_tries() -> None:
    service, tools, clock = served()
    await statuses(tools, 3)
    clock.time += 30
    results = await asyncio.gather(*(ask(tools) for _ in range(10)))
    assert service.calls == 4
    assert {result.status for result in results} == {ToolStatus.INFRA_ERROR}


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_try_that_tells_nothing_gives_its_place_on(how: str) -> None:
    started = asyncio.Event()

    class Hanging(Service):
        async def __call__(self, arguments: Any, context: ToolContext) -> Any:
            if self.down is None and not started.is_set():
                started.set()
                await asyncio.sleep(60)
            return await super().__call__(arguments, context)

    service, clock = Hanging(), FakeClock()
    tools = box(service, clock=clock, breaker_after=1, timeout=0.05 if how == "timed out" else 60.0)
    await ask(tools)
    clock.time += 30
    service.down = None
    trying = asyncio.ensure_future(ask(tools))
    await started.wait()
    assert (await ask(tools)).status is ToolStatus.INFRA_ERROR, "somebody is trying"
    if how == "cancelled":
        trying.cancel()
    await asyncio.gather(trying, return_exceptions=True)
    assert (await ask(tools)).text == "up"
    assert not open_now(tools)


async def test_calls_that_were_under_way_when_it_opened_finish() -> None:
    gate = asyncio.Event()

    async def call(arguments: Any, context: ToolContext) -> str:
        if context.path == "slow":
            await gate.wait()
            return "late but good"
        raise OSError("refused")

    tools = box(call, clock=FakeClock(), breaker_after=2)
    slow = asyncio.ensure_future(ask(tools, ToolContext(path="slow")))
    await asyncio.sleep(0)
    await statuses(tools, 3)
    assert open_now(tools)
    gate.set()
    assert (await slow).text == "late but good"
    assert not open_now(tools), "an answer is an answer"


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_what_was_under_way_when_it_opened_neither_prolongs_the_rest_nor_lets_a_second_one_try(how: str) -> None:
    gates = {"late": asyncio.Event(), "trying": asyncio.Event()}
    called = []

    async def call(arguments: Any, context: ToolContext) -> str:
        called.append(context.path)
        if context.path in gates:
            await gates[context.path].wait()
        raise OSError("refused")

    clock = FakeClock()
    tools = box(call, clock=clock, breaker_after=2)
    late = asyncio.ensure_future(ask(tools, ToolContext(path="late")))
    await asyncio.sleep(0)
    clock.time += 1
    await statuses(tools, 2)
    clock.time += 30
    trying = asyncio.ensure_future(ask(tools, ToolContext(path="trying")))
    while "trying" not in called:
        await asyncio.sleep(0)
    gates["late"].set() if how == "fails" else late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    await ask(tools, ToolContext(path="second"))
    assert "second" not in called
    gates["trying"].set()
    await trying
    clock.time += 30
    await ask(tools, ToolContext(path="next"))
    assert "next" in called


async def test_who_waited_in_line_while_it_opened_is_not_let_through() -> None:
    service, tools, _ = served(concurrency=1, breaker_after=2)
    results = await asyncio.gather(*(ask(tools) for _ in range(6)))
    assert service.calls == 2
    assert {result.status for result in results} == {ToolStatus.INFRA_ERROR}
    assert tools._entries["t"].gate._places._free == 1  # type: ignore[union-attr]


async def test_without_a_breaker_it_is_called_for_ever() -> None:
    service, tools, _ = served(breaker_after=None)
    await statuses(tools, 30)
    assert service.calls == 30


# The circuit alone


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["ok", "fail", "nothing", "wait", "rest"]), max_size=60), st.integers(1, 4))
def test_the_circuit_does_what_a_plain_description_of_it_does(events: list[str], threshold: int) -> None:
    clock = FakeClock()
    circuit = Circuit(threshold, 30.0, clock)
    row, opened, openings = 0, None, 0
    for event in events:
        if event in ("wait", "rest"):
            clock.time += {"wait": 10.0, "rest": 30.0}[event]
            continue
        admitted = opened is None or clock.time - opened >= 30
        assert circuit.passable is admitted
        assert circuit.admits() is admitted
        if not admitted:
            continue
        if opened is not None:
            assert not circuit.admits(), "only one may try"
        if event == "ok":
            circuit.succeed()
            row, opened = 0, None
        elif event == "fail":
            row += 1
            openings += opened is None and row >= threshold
            opened = clock.time if opened is not None or row >= threshold else None
            assert circuit.fail("x") is (opened is not None)
        else:
            circuit.release()
        assert (circuit.closed, circuit.openings) == (opened is None, openings)
