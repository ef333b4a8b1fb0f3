"""An event loop in a thread of its own, where connections live.

A connection is a set of tasks of one event loop, and dies with it. Tools, though, are built in plain code, before any
loop runs or while one does, and a run calls `asyncio.run` more than once. Connecting in the caller's loop would start
every server anew for each of them (a second each) and leave its end to whatever order that loop is torn down in. So one
thread keeps a loop for the connections of one `[[tools]]` entry: whoever builds waits for it, whoever calls awaits it
from a loop of their own, and `close` ends it. The thread is a daemon: it keeps no process from ending.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_JOIN = 1.0
"""Seconds that closing waits for the thread to end, once its loop has nothing more to do."""


class Hub:
    """A loop in a thread, started when it is first needed, and again if it is needed after `close`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> bool:
        return self._loop is not None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run a coroutine in the thread's loop."""
        with self._lock:
            return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine, waited for. For code outside of event loops; it blocks."""
        return self.submit(coroutine).result()

    async def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine, awaited from any loop. Cancelling this cancels it."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def spare(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine whose outcome nobody waits for; `close` does. To be called in the thread's loop."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Run `last`, wait for what is under way in the background, and end the thread."""
        taken = self._taken()
        if taken is None:
            last.close()
            return
        loop, thread = taken
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._wind_up(last), loop))
        finally:
            _stop(loop, thread)

    def shut(self, last: Coroutine[Any, Any, Any]) -> None:
        """`close` for code outside of event loops; it blocks, except in the hub's own thread."""
        taken = self._taken()
        if taken is None:
            last.close()
            return
        loop, thread = taken
        done = asyncio.run_coroutine_threadsafe(self._wind_up(last), loop)
        if thread is threading.current_thread():  # a finalizer runs wherever it happens to
            done.add_done_callback(lambda _: loop.stop())
            return
        try:
            done.result()
        finally:
            _stop(loop, thread)

    def _taken(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread] | None:
        """The loop and its thread, which nothing is given to from now on; None if there is none."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        return None if loop is None or thread is None else (loop, thread)

    async def _wind_up(self, last: Coroutine[Any, Any, Any]) -> None:
        await last
        await asyncio.gather(*self._background, return_exceptions=True)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self.name, daemon=True)
            self._thread.start()
        return self._loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_JOIN)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then end what is left in it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
