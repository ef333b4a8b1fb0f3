"""Time limits, against tools of every bad habit."""

import asyncio
import contextlib
import gc
import logging

import pytest
from tool_fakes import Stubborn, ask, box, tasks_left, until

from arpo.tools import running
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.running import off_the_clock


async def test_a_tool_that_swallows_its_cancellation_is_given_up_and_named(caplog):
    stubborn = Stubborn()
    tools = box(stubborn, timeout=0.02, grace=0.02)
    with caplog.at_level(logging.WARNING):
        results = await asyncio.gather(*(ask(tools, ToolContext("task 7", f"r{i}")) for i in range(3)))
    assert [(r.status, r.text) for r in results] == [(ToolStatus.TIMEOUT, "Timed out after 0.02 s.")] * 3
    assert (tools.stats["t"].timeouts, tools.stats["t"].abandoned) == (3, 3)
    assert "tool t: task 7 r2 call 0 does not end, its task is given up" in caplog.text
    assert tools._entries["t"].calls.held == [f"task 7 r{i} call 0" for i in range(3)]
    stubborn.free = True
    await until(lambda: stubborn.ended == 3)
    await asyncio.sleep(0)
    assert tools._entries["t"].calls.held == []
    assert not tasks_left()


async def test_a_tool_that_cleans_up_within_its_grace_is_waited_for():
    cleaned = []

    async def call(arguments, context):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    tools = box(call, timeout=0.02, grace=30)
    assert (await ask(tools)).status is ToolStatus.TIMEOUT
    assert (cleaned, tools.stats["t"].abandoned) == ([1], 0)
    assert not tasks_left()


async def test_what_a_tool_says_after_its_limit_does_not_count(caplog):
    async def late_result(arguments, context):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "late"

    async def late_error(arguments, context):
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("broken on the way out")

    for call in (late_result, late_error):
        assert (await ask(box(call, timeout=0.02))).status is ToolStatus.TIMEOUT
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_the_place_of_a_call_that_was_given_up_goes_to_the_next():
    stubborn = Stubborn()

    async def call(arguments, context):
        return await stubborn(arguments, context) if context.call_index == 0 else "done"

    tools = box(call, concurrency=1, timeout=0.02, grace=0.01)
    first, second = await asyncio.gather(*(ask(tools, ToolContext(call_index=i)) for i in range(2)))
    assert (first.status, second.text) == (ToolStatus.TIMEOUT, "done")
    stubborn.free = True
    await tools.close()


async def test_a_tool_of_which_too_many_calls_hang_is_called_no_more(monkeypatch):
    monkeypatch.setattr(running, "MAX_HELD", 2)
    stubborn = Stubborn()
    tools = box(stubborn, timeout=0.01, grace=0.01)
    statuses = [(await ask(tools)).status for _ in range(4)]
    assert statuses == [ToolStatus.TIMEOUT] * 3 + [ToolStatus.INFRA_ERROR]
    stubborn.free = True
    await until(lambda: stubborn.ended == 3)
    assert (await ask(tools)).text == "too late"


async def test_close_cancels_again_and_says_what_would_not_end(monkeypatch, caplog):
    monkeypatch.setattr("arpo.tools.toolbox.PATIENCE", 0.05)
    stubborn, second_thoughts = Stubborn(), []

    async def call(arguments, context):
        if context.path == "never":
            return await stubborn(arguments, context)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        finally:
            second_thoughts.append(context.path)

    tools = box(call, timeout=0.01, grace=0.01)
    await asyncio.gather(*(ask(tools, ToolContext("q", path)) for path in ("never", "at last")))
    with caplog.at_level(logging.WARNING):
        await tools.close()
    assert second_thoughts == ["at last"]
    assert "tool t: 1 calls cannot be ended: q never call 0" in caplog.text
    assert len(tasks_left()) == 1
    stubborn.free = True
    await until(lambda: not tasks_left())


async def test_a_cancelled_caller_leaves_no_task_and_no_place_taken():
    started, ended = [], []

    async def call(arguments, context):
        started.append(1)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    tools = box(call, concurrency=2)
    callers = [asyncio.ensure_future(ask(tools)) for _ in range(5)]
    await until(lambda: len(started) == 2)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert all(caller.cancelled() for caller in callers)
    assert len(ended) == 2
    assert not tasks_left()
    assert tools._entries["t"].gate._places._free == 2
    assert tools._entries["t"].running == 0


@pytest.mark.parametrize("again", [False, True])
async def test_a_cancelled_caller_of_a_stubborn_tool_goes_on_without_it(again):
    stubborn = Stubborn()
    tools = box(stubborn, concurrency=1, grace=60 if again else 0.01)
    caller = asyncio.ensure_future(ask(tools))
    await until(lambda: stubborn.started)
    caller.cancel()
    if again:
        await until(lambda: stubborn.cancelled == 1)
        caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled()
    assert tools.stats["t"].abandoned == 1
    stubborn.free = True
    assert (await ask(tools)).text == "too late"
    await until(lambda: not tasks_left())


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), StopIteration(), GeneratorExit()])
async def test_a_tool_that_tries_to_end_the_run_fails_alone(error):
    async def call(arguments, context):
        raise error

    result = await ask(box(call))
    assert (result.status, result.text) == (ToolStatus.INFRA_ERROR, "")


async def test_time_off_the_clock_is_waiting():
    async def call(arguments, context):
        with off_the_clock(), off_the_clock():
            await asyncio.sleep(0.1)
        return "done"

    tools = box(call, timeout=0.05)
    result = await ask(tools)
    assert result.status is ToolStatus.OK
    assert tools.stats["t"].waited >= 0.09
    with off_the_clock():
        pass


async def test_the_clock_goes_on_after_a_rest():
    async def call(arguments, context):
        with off_the_clock():
            await asyncio.sleep(0.1)
        await asyncio.sleep(60)

    assert (await ask(box(call, timeout=0.03))).status is ToolStatus.TIMEOUT
