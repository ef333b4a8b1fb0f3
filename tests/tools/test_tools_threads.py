"""Tools that block, in threads of their own."""

import asyncio
import logging
import threading
import time

import pytest
from tool_fakes import Stubborn, ask, blocking, box, tool, tool_threads, until

from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.running import runs_in_thread


async def test_a_plain_function_runs_in_a_thread_and_the_loop_goes_on():
    reached = threading.Event()

    def action(context):
        return "met" if reached.wait(30) else "alone"

    tools = box(blocking(action))
    calling = asyncio.ensure_future(ask(tools))
    await until(tool_threads)
    reached.set()
    assert (await calling).text == "met"
    await tools.close()
    assert tool_threads() == []


async def test_threads_are_reused_and_as_many_as_calls_are_allowed():
    lock, names = threading.Lock(), set()

    def action(context):
        with lock:
            names.add(threading.get_ident())
        time.sleep(0.002)
        return "done"

    tools = box(blocking(action), concurrency=2)
    for _ in range(5):
        results = await asyncio.gather(*(ask(tools) for _ in range(10)))
        assert {r.text for r in results} == {"done"}
        assert len(tool_threads()) == 2
    assert len(names) == 2
    assert tools.stats["t"].in_flight == 2
    await tools.close()
    assert tool_threads() == []


async def test_a_thread_past_its_limit_is_abandoned_and_replaced_and_ends_when_its_call_does():
    stuck = threading.Event()

    def action(context):
        if context.call_index < 3:
            stuck.wait(30)
        return "done"

    tools = box(blocking(action), concurrency=1, timeout=0.3)
    results = [await ask(tools, ToolContext(call_index=i)) for i in range(5)]
    assert [r.status for r in results] == [ToolStatus.TIMEOUT] * 3 + [ToolStatus.OK] * 2
    assert tools.stats["t"].abandoned == 3
    assert len(tool_threads()) == 4
    stuck.set()
    await until(lambda: len(tool_threads()) == 1)
    assert tools._entries["t"].calls.held == []
    await tools.close()
    assert tool_threads() == []


async def test_close_names_the_thread_that_does_not_end(monkeypatch, caplog):
    monkeypatch.setattr("arpo.tools.toolbox.PATIENCE", 0.05)
    stuck = threading.Event()
    tools = box(blocking(lambda context: stuck.wait(30)), timeout=0.02)
    await ask(tools)
    with caplog.at_level(logging.WARNING):
        await tools.close()
    assert "tool t: 1 calls cannot be ended: task 7 r1/2.1 call 3" in caplog.text
    stuck.set()
    await until(lambda: not tool_threads())


async def test_a_coroutine_that_blocks_runs_in_a_thread_if_it_says_so():
    async def call(arguments, context):
        time.sleep(0.002)
        await asyncio.sleep(0.002)
        return threading.current_thread().name

    tools = box(call, more={"blocking": True})
    results = await asyncio.gather(*(ask(tools) for _ in range(3)))
    assert {r.text for r in results} == {"tool t"}
    await tools.close()


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(1), StopIteration(), KeyboardInterrupt()])
async def test_whatever_a_thread_raises_is_an_infrastructure_error(error):
    def action(context):
        raise error

    tools = box(blocking(action))
    for _ in range(2):
        assert (await ask(tools)).status is ToolStatus.INFRA_ERROR
    assert len(tool_threads()) == 1
    await tools.close()


async def test_the_cancelled_caller_of_a_thread_does_not_wait_for_it():
    stuck = threading.Event()
    tools = box(blocking(lambda context: stuck.wait(30)), concurrency=1)
    caller = asyncio.ensure_future(ask(tools))
    await until(tool_threads)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert (caller.cancelled(), tools.stats["t"].abandoned) == (True, 1)
    stuck.set()
    await tools.close()
    assert tool_threads() == []


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_answers_a_loop_that_is_gone_harms_nobody():
    stuck = threading.Event()
    tools = box(blocking(lambda context: stuck.wait(30) and "x"), concurrency=1, timeout=0.3)
    assert asyncio.run(ask(tools)).status is ToolStatus.TIMEOUT
    stuck.set()
    assert asyncio.run(ask(tools)).text == "x"
    asyncio.run(tools.close())
    assert tool_threads() == []
    assert not tools._entries["t"].calls.workers._all


async def test_without_a_limit_there_are_only_so_many_threads(monkeypatch):
    monkeypatch.setattr("arpo.tools.entry.DEFAULT_THREADS", 2)
    tools = box(blocking(lambda context: time.sleep(0.002) or "x"))
    await asyncio.gather(*(ask(tools) for _ in range(8)))
    assert (tools.stats["t"].in_flight, len(tool_threads())) == (2, 2)
    await tools.close()


def test_what_runs_in_a_thread():
    async def coroutine(arguments, context): ...

    def plain(arguments, context): ...

    assert not runs_in_thread(tool(coroutine))
    assert runs_in_thread(tool(plain))
    assert runs_in_thread(tool(coroutine, blocking=True))
    assert not runs_in_thread(tool(lambda arguments, context: coroutine(arguments, context), blocking=False))
    assert not runs_in_thread(tool(Stubborn()))


async def test_a_function_that_returns_a_coroutine_is_awaited_wherever_it_runs():
    async def coroutine():
        return "done"

    for says in (None, False, True):
        more = {} if says is None else {"blocking": says}
        tools = box(lambda arguments, context: coroutine(), more=more)
        assert (await ask(tools)).text == "done"
        await tools.close()
