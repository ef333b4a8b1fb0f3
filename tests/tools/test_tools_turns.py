"""Turns and rates of tools: who may call, and when."""

import asyncio
import gc

import pytest
from tool_fakes import FakeClock, ask, box

from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.limits import Bucket, Gate, Turns


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
