"""One call of a tool, which ends at its time limit whatever the tool does.

Three kinds of tools do not end when told to. One swallows its cancellation, or goes on in a `finally`: it gets a grace
to clean up, then it is given up: the caller goes on without it, the task is held (a task that nobody holds may be
collected half-way), counted, and cancelled again at close. One blocks: in the event loop nothing could interrupt it, so
tools that block run in threads of their own (`workers`): those whose `call` is a plain `def`, and those that say
`blocking = True`. One needs to queue for something of its own: it waits `off_the_clock`.

The place of a call that was given up goes to the next, or a tool that hangs would starve; so that it cannot eat up the
machine instead, a tool of which MAX_HELD calls will not end is called no more until some do.
"""

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from arpo.tools.base import Tool, ToolContext
from arpo.tools.limits import Limit
from arpo.tools.workers import Worker, Workers

log = logging.getLogger(__name__)
MAX_HELD = 256
"""Calls of one tool that were given up and still run; with more, the tool is out of order."""

_TICK = 0.01
"""Seconds after which a call that is off the clock, or has extra time, is looked at again."""


class TimeUp(Exception):  # noqa: N818 - not an error of the machinery
    """The call's time limit came before its result."""


class OutOfOrder(Exception):  # noqa: N818
    """Too many calls of the tool would not end."""


@dataclass(eq=False, slots=True)
class Watch:
    """The time that a call has used. `off`: seconds that did not count; `stopped`: since when it stands, or None;
    `limit`: seconds that it may use; `extra`: seconds that it may use besides, for the moment.
    """

    started: float = field(default_factory=time.perf_counter)
    off: float = 0.0
    stopped: float | None = None
    limit: float = math.inf
    extra: float = 0.0

    def used(self) -> float:
        now = time.perf_counter() if self.stopped is None else self.stopped
        return now - self.started - self.off


_WATCH: ContextVar[Watch | None] = ContextVar("arpo_tool_watch", default=None)


@contextmanager
def off_the_clock() -> Iterator[None]:
    """For a tool that waits for its turn at something of its own: this time counts as waiting, not as the call's."""
    watch = _WATCH.get()
    if watch is None or watch.stopped is not None:
        yield
        return
    watch.stopped = time.perf_counter()
    try:
        yield
    finally:
        watch.off += time.perf_counter() - watch.stopped
        watch.stopped = None


@contextmanager
def extra_time(calls: int) -> Iterator[float | None]:
    """For a tool that has to make up for that many earlier calls first: their time, which does not count as the call's.

    Gives the seconds that it may take; None outside a tool box, where there is no limit.
    """
    watch = _WATCH.get()
    if watch is None or watch.limit == math.inf:
        yield None
        return
    seconds, before = calls * watch.limit, watch.used()
    watch.extra += seconds + _TICK
    try:
        yield seconds
    finally:
        watch.off += watch.used() - before
        watch.extra -= seconds + _TICK


@dataclass(eq=False, slots=True)
class Running:
    """A call under way: a task, or a thread (`worker`) and the future of its outcome."""

    name: str
    watch: Watch
    future: "asyncio.Future[Any]"
    worker: Worker | None = None

    @property
    def alive(self) -> bool:
        if self.worker is not None:
            return self.worker.busy
        return not self.future.done() and not self.future.get_loop().is_closed()

    def result(self) -> Any:
        """What the tool returned; raises what it raised, always an Exception."""
        if self.future.cancelled():
            raise RuntimeError("the tool cancelled its own call")
        value, error = None, self.future.exception()
        if error is None:
            value, error = (self.future.result(), None) if self.worker is None else self.future.result()
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(repr(error))
        return value


class Calls:
    """The calls of one tool. `gave_up` is called for each that would not end."""

    def __init__(self, tool: Tool, limit: Limit, gave_up: Callable[[], None]) -> None:
        self.tool, self.limit, self.gave_up = tool, limit, gave_up
        self.workers = Workers(tool.name) if runs_in_thread(tool) else None
        self._held: set[Running] = set()

    @property
    def held(self) -> list[str]:
        """The calls that were given up and still run, by place in the tree."""
        self._held = {call for call in self._held if call.alive}
        return sorted(call.name for call in self._held)

    async def run(self, arguments: Mapping[str, Any], context: ToolContext, watch: Watch) -> Any:
        """What the tool returns. Raises TimeUp at the time limit, OutOfOrder, or whatever the tool raises."""
        if len(self._held) > MAX_HELD and len(self.held) > MAX_HELD:
            raise OutOfOrder(f"{len(self._held)} calls of it were given up and still run")
        watch.limit = self.limit.timeout
        call = self._start(arguments, context, watch)
        try:
            done = await self._done_in_time(call)
        except asyncio.CancelledError:
            await self._end(call)
            raise
        if not done:
            await self._end(call)
            raise TimeUp
        return call.result()

    def _start(self, arguments: Mapping[str, Any], context: ToolContext, watch: Watch) -> Running:
        name = f"{context.task_id} {context.path} call {context.call_index}".strip()
        around = copy_context()
        around.run(_WATCH.set, watch)
        if self.workers is None:
            coroutine = _called(self.tool, arguments, context)
            return Running(name, watch, asyncio.get_running_loop().create_task(coroutine, context=around))
        worker, future = self.workers.start(lambda: around.run(_call_in_thread, self.tool, arguments, context))
        return Running(name, watch, future, worker)

    async def _done_in_time(self, call: Running) -> bool:
        """Wait for the call until its time is up; however late it is, it has had the chance to start."""
        watch = call.watch
        while True:
            limit = watch.limit + watch.extra
            least, most = 0.0 if watch.stopped is None else _TICK, _TICK if watch.extra else math.inf
            await asyncio.wait((call.future,), timeout=min(max(limit - watch.used(), least), most))
            if call.future.done():
                return True
            if watch.stopped is None and watch.used() >= watch.limit + watch.extra:
                return False

    async def _end(self, call: Running) -> None:
        """Cancel the call, give it its grace, and give it up if it does not end."""
        try:
            if call.worker is None and not call.future.done():
                call.future.cancel()
                await asyncio.wait((call.future,), timeout=self.limit.grace)
        finally:
            if call.worker is not None and call.worker.abandon():
                self._give_up(call)
            elif call.worker is None:
                call.future.add_done_callback(_forget_outcome)
                if not call.future.done():
                    self._give_up(call)

    def _give_up(self, call: Running) -> None:
        self.gave_up()
        self._held.add(call)
        call.future.add_done_callback(lambda _: self._held.discard(call))
        kind, count = "task" if call.worker is None else "thread", len(self._held)
        log.warning("tool %s: %s does not end, its %s is given up (%d now)", self.tool.name, call.name, kind, count)

    async def close(self, patience: float) -> list[str]:
        """End what can be ended within `patience` seconds; returns the calls that could not."""
        loop = asyncio.get_running_loop()
        tasks = [call.future for call in self._held if call.worker is None and call.alive]
        mine = [task for task in tasks if task.get_loop() is loop]
        for task in mine:
            task.cancel()
        if mine:
            await asyncio.wait(mine, timeout=patience)
        if self.workers is not None:
            await self.workers.close(patience)
        return self.held


def runs_in_thread(tool: Tool) -> bool:
    """As the tool's `blocking` says; without it, if `call` is a plain function."""
    blocking = getattr(tool, "blocking", None)
    if blocking is not None:
        return bool(blocking)
    call: Callable[..., Any] = tool.call
    return not (inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__))


async def _called(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Any:
    try:
        result: Any = tool.call(arguments, context)
        return await result if inspect.isawaitable(result) else result
    except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit would stop the event loop and everything in it
        raise RuntimeError(repr(error)) from error


def _call_in_thread(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Any:
    result: Any = tool.call(arguments, context)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _forget_outcome(future: "asyncio.Future[Any]") -> None:
    """An outcome after the end interests nobody; asyncio would complain of an exception that was not looked at."""
    if not future.cancelled():
        future.exception()
