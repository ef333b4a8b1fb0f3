"""Limits of tools: turns, rates, time limits against tools of every bad habit, threads, and results that are none."""

import asyncio
import contextlib
import gc
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from arpo.tools import running
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.limits import Bucket, Clock, Gate, Turns
from arpo.tools.registry import build
from arpo.tools.running import off_the_clock, runs_in_thread
from arpo.tools.sandbox.monty import MontySandbox
from arpo.tools.sandbox.tool import PythonTool
from arpo.tools.search import Document, LocalSource, SearchIndex, SearchTool
from arpo.tools.settings import ImportSettings, PythonSettings, SearchSettings
from arpo.tools.toolbox import Limit, ToolBox

HERE = ToolContext("task 7", "r1/2.1", call_index=3)


def tool(call, **more):
    return SimpleNamespace(name="t", description="", parameters={"type": "object"}, call=call, **more)


def box(call, *, more=None, **limits):
    return ToolBox([tool(call, **(more or {}))], {"t": Limit(**limits)})


async def ask(tools, context=HERE):
    return await tools.call("t", {}, context)


async def until(condition):
    """Wait for a condition that must come true; the test's own time limit is the guard."""
    while not condition():
        await asyncio.sleep(0.002)


def tool_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tool ")]


def tasks_left():
    return asyncio.all_tasks() - {asyncio.current_task()}


class FakeClock(Clock):
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.time = 1e6

    def now(self):
        return self.time

    async def sleep(self, seconds):
        await asyncio.sleep(0)
        self.time += seconds


# Turns and rates


async def test_no_more_calls_at_once_than_allowed_and_who_came_first_goes_first():
    at_once, order = [], []

    async def call(arguments, context):
        at_once.append(1)
        order.append((context.call_index, len(at_once)))
        await asyncio.sleep(0.001)
        at_once.pop()
        return "done"

    tools = box(call, concurrency=3)
    results = await asyncio.gather(*(ask(tools, ToolContext(call_index=i)) for i in range(20)))
    assert [r.status for r in results] == [ToolStatus.OK] * 20
    assert [index for index, _ in order] == list(range(20))
    assert max(busy for _, busy in order) == 3
    stats = tools.stats["t"]
    assert (stats.in_flight, stats.calls) == (3, 20)
    assert stats.waited > 0


async def test_without_limits_nothing_waits():
    async def call(arguments, context):
        await asyncio.sleep(0)
        return "done"

    tools = box(call)
    await asyncio.gather(*(ask(tools) for _ in range(50)))
    assert (tools.stats["t"].in_flight, tools.stats["t"].waited) == (50, 0.0)


async def test_waiting_is_not_part_of_the_time_limit():
    async def call(arguments, context):
        await asyncio.sleep(0.25)
        return "done"

    tools = box(call, concurrency=1, timeout=1.0)
    results = await asyncio.gather(*(ask(tools) for _ in range(6)))
    assert [r.status for r in results] == [ToolStatus.OK] * 6
    assert tools.stats["t"].waited > sum(r.latency for r in results)


async def test_bucket_lets_a_burst_through_and_then_keeps_the_rate():
    clock = FakeClock()
    bucket = Bucket(5.0, clock)
    starts = []

    async def one(index):
        await bucket.take()
        starts.append((index, round(clock.time - 1e6, 6)))

    await asyncio.gather(*(one(i) for i in range(10)))
    assert starts == [(i, max(0.0, round((i - 4) / 5, 6))) for i in range(10)]


async def test_a_rate_below_one_lets_one_call_through_at_once_and_a_rest_saves_no_more():
    clock = FakeClock()
    bucket = Bucket(0.5, clock)
    times = []
    for _ in range(3):
        await bucket.take()
        times.append(clock.time - 1e6)
    assert times == pytest.approx([0.0, 2.0, 4.0])
    clock.time += 1000
    await bucket.take()
    await bucket.take()
    assert clock.time - 1e6 == pytest.approx(1006.0)


async def test_a_cancelled_waiter_takes_no_token_and_keeps_no_place():
    hold = asyncio.Event()

    class Held(FakeClock):
        async def sleep(self, seconds):
            await hold.wait()
            self.time += seconds

    clock = Held()
    gate = Gate(2, 1.0, clock)
    await gate.enter()
    first, second = (asyncio.ensure_future(gate.enter()) for _ in range(2))
    await asyncio.sleep(0)
    for waiter in (first, second):
        waiter.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    third = asyncio.ensure_future(gate.enter())
    hold.set()
    assert await third == pytest.approx(1.0)
    gate.leave()
    gate.leave()
    turns = gate._places
    await turns.enter()
    await turns.enter()
    blocked = asyncio.ensure_future(turns.enter())
    await asyncio.sleep(0)
    assert not blocked.done()
    blocked.cancel()
    await asyncio.gather(blocked, return_exceptions=True)
    assert not turns._queue


@pytest.mark.parametrize("given_first", [False, True])
async def test_a_place_given_to_a_cancelled_waiter_goes_to_the_next(given_first):
    turns = Turns(1)
    await turns.enter()
    first, second = (asyncio.ensure_future(turns.enter()) for _ in range(2))
    await asyncio.sleep(0)
    if given_first:
        turns.leave()
        first.cancel()
    else:
        first.cancel()
        turns.leave()
    await second
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    turns.leave()
    await turns.enter()


async def test_any_mixture_of_cancellations_leaves_all_places_free():
    turns = Turns(3)

    async def one(index):
        await turns.enter()
        try:
            for _ in range(index % 4):
                await asyncio.sleep(0)
        finally:
            turns.leave()

    tasks = [asyncio.ensure_future(one(i)) for i in range(200)]
    for step in range(60):
        await asyncio.sleep(0)
        for task in tasks[step::7][:2]:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (turns._free, len(turns._queue)) == (3, 0)


def test_a_tool_box_serves_one_event_loop_after_another_even_after_a_loop_that_died():
    async def call(arguments, context):
        await asyncio.sleep(0.001)
        return "done"

    tools = box(call, concurrency=1, rate=2000.0)

    async def many():
        return [r.text for r in await asyncio.gather(*(ask(tools) for _ in range(3)))]

    assert asyncio.run(many()) == ["done"] * 3

    async def deserters():
        waiting = [asyncio.ensure_future(ask(tools)) for _ in range(3)]
        await asyncio.sleep(0)
        return waiting

    asyncio.run(deserters())
    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(deserters())
    loop.close()
    for task in waiting:
        task._log_destroy_pending = False
    del task, waiting
    gc.collect()
    for _ in range(2):
        assert asyncio.run(many()) == ["done"] * 3


# Time limits


class Stubborn:
    """Goes on through any number of cancellations until it is let go (or for a time, lest a failed test hang)."""

    def __init__(self):
        self.free = False
        self.started = 0
        self.cancelled = 0
        self.ended = 0

    async def __call__(self, arguments, context):
        self.started += 1
        end = time.monotonic() + 20
        while not self.free and time.monotonic() < end:
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                self.cancelled += 1
        self.ended += 1
        return "too late"


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


# Threads


def blocking(action):
    def call(arguments, context):
        return action(context)

    return call


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


# Results that are none


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("garbage", "cause"),
    [
        (None, "type NoneType"),
        (b"bytes", "type bytes"),
        (17, "type int"),
        (ToolResult(ToolStatus.OK, None), "`text` is of type NoneType"),
        (ToolResult(ToolStatus.OK, b"bytes"), "`text` is of type bytes"),
        (ToolResult("splendid", "x"), "'splendid' is not a valid ToolStatus"),
        (ToolResult(ToolStatus.OK, "x", data=None), "`data` is of type NoneType"),
        (ToolResult(ToolStatus.OK, "x", cached="yes"), "`cached` is of type str"),
        (ToolResult(ToolStatus.OK, "x", score=float("nan")), "`score` is nan"),
        (ToolResult(ToolStatus.OK, "x", score="high"), "TypeError"),
    ],
)
async def test_garbage_is_an_infrastructure_error_that_says_why(garbage, cause):
    async def call(arguments, context):
        return garbage

    tools = box(call)
    result = await ask(tools)
    assert (result.status, result.text) == (ToolStatus.INFRA_ERROR, "")
    assert cause in result.data["error"]
    assert tools.stats["t"].infra_errors == 1


@pytest.mark.parametrize("returned", ["plain", ToolResult("ok", "plain", score=2)])
async def test_a_plain_text_is_a_success(returned):
    async def call(arguments, context):
        return returned

    result = await ask(box(call))
    assert (result.status, result.text) == (ToolStatus.OK, "plain")


async def test_an_exception_that_cannot_be_printed_or_is_endless():
    async def unprintable(arguments, context):
        raise UnprintableError

    async def endless(arguments, context):
        raise ValueError("x" * 10_000_000)

    assert (await ask(box(unprintable))).data["error"] == "UnprintableError"
    assert len((await ask(box(endless))).data["error"]) <= 500


async def test_50_megabytes_of_control_characters_are_cut_before_they_are_cleaned():
    async def call(arguments, context):
        return "\x1b[2J\x00" * 10_000_000

    result = await ask(box(call, max_chars=300))
    assert result.status is ToolStatus.OK
    assert len(result.text) <= 300
    assert "\x1b" not in result.text
    assert "\x00" not in result.text


async def test_a_tool_whose_close_fails_or_hangs_does_not_keep_the_others_open(monkeypatch, caplog):
    monkeypatch.setattr("arpo.tools.toolbox.PATIENCE", 0.05)
    closed = []

    async def fails():
        raise OSError("no such socket")

    async def hangs():
        await asyncio.sleep(60)

    async def call(arguments, context):
        return "x"

    closes = {"fails": fails, "hangs": hangs, "plain": lambda: closed.append("plain")}
    tools = ToolBox([SimpleNamespace(name=n, parameters={}, call=call, close=c) for n, c in closes.items()])
    with caplog.at_level(logging.WARNING):
        await tools.close()
    assert closed == ["plain"]
    assert "tool fails: closing it failed: OSError: no such socket" in caplog.text
    assert "tool hangs: closing it failed: TimeoutError" in caplog.text
    assert not tasks_left()


# Settings and the tools that are there


@pytest.mark.parametrize("kind", [SearchSettings, PythonSettings, lambda **more: ImportSettings(path="a:b", **more)])
def test_every_tool_has_the_same_limits(kind):
    settings = kind(timeout=3, max_chars=500, concurrency=4, rate=2.5)
    assert (settings.timeout, settings.max_chars, settings.concurrency, settings.rate) == (3, 500, 4, 2.5)
    for wrong in ({"concurrency": 0}, {"rate": 0}, {"rate": float("inf")}, {"timeout": float("nan")}):
        with pytest.raises(ValidationError):
            kind(**wrong)


async def test_limits_of_the_settings_reach_the_tool():
    tools = build([PythonSettings(backend="monty", concurrency=2, rate=7.0, timeout=3.0, max_chars=400)])
    assert tools.limits["python"] == Limit(timeout=3.0, max_chars=400, concurrency=2, rate=7.0)
    await tools.close()


async def test_an_imported_tool_may_block_and_say_that_it_is_stateless(tmp_path, monkeypatch):
    (tmp_path / "plain_tool_for_test.py").write_text(
        "class Plain:\n"
        "    name, description, parameters, stateless = 'plain', 'is plain', {'type': 'object'}, True\n"
        "    def call(self, arguments, context): return 'plainly'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tools = build([ImportSettings(path="plain_tool_for_test:Plain", concurrency=1)])
    assert tools.tools[0].stateless
    assert (await tools.call("plain", {}, HERE)).text == "plainly"
    assert tool_threads() == ["tool plain"]
    await tools.close()


async def test_search_says_how_well_its_results_fit(tmp_path):
    index = SearchIndex.build([Document("1", "Chad", "dry"), Document("2", "Mali", "dry and hot")], tmp_path / "index")
    search = SearchTool(LocalSource(index), top_k=2, shuffle=True)
    hits = index.query("hot dry", 2)
    found, missed = [await search.call({"query": query}, HERE) for query in ("hot dry", "snow")]
    assert found.score == max(hit.score for hit in hits) > 0
    assert (found.empty, missed.score, missed.empty) == (False, 0.0, True)
    assert (SearchTool.stateless, PythonTool.stateless) == (True, True)


async def test_code_that_prints_nothing_has_an_empty_result():
    python = PythonTool(MontySandbox())
    assert [(await python.call({"code": code}, HERE)).empty for code in ("x = 1", "1", "print()")] == [
        True,
        False,
        True,
    ]
    await python.close()


async def test_slow_code_waits_for_a_core_off_the_clock(monkeypatch):
    """With one core to run on, the five calls run one after another, and the four that wait are not late for it."""
    monkeypatch.setattr("arpo.tools.sandbox.monty._CORES", 1)
    python = PythonTool(MontySandbox(quick=0.001), PythonSettings(timeout=3))
    tools = ToolBox([python], {"python": Limit(timeout=3)})
    code = "x = 0\nwhile x < 150000:\n    x += 1\nx"
    results = await asyncio.gather(*(tools.call("python", {"code": code}, HERE) for _ in range(5)))
    assert [r.text for r in results] == ["150000"] * 5
    assert tools.stats["python"].waited > max(r.latency for r in results)
    await tools.close()
