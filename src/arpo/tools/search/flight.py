"""One fetch at a time per key: whoever asks for what is being fetched waits for that answer.

Within an event loop, followers wait for the leader's outcome and share it, failure included. A leader that is cancelled
has no outcome, so one of its followers takes over. Between threads, event loops and processes a lock on one byte of a
file stands for the key; the kernel frees it when its holder is done or dead. It is taken with Linux's locks of open
file descriptions, which hold between threads, too; where the system has none, only the event loop is covered, and
another process may fetch the same key a second time.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
"""Seconds between two looks at a lock that is taken."""


class Flights(Generic[_T]):
    """The fetches under way, by key and event loop."""

    def __init__(self) -> None:
        self._flying: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bytes, asyncio.Future[_T]]]
        self._flying = WeakKeyDictionary()

    async def share(self, key: bytes, fetch: Callable[[], Awaitable[_T]]) -> tuple[_T, bool]:
        """What `fetch` returns or raises, and whether it was another's fetch that gave it."""
        flying = self._flying.setdefault(asyncio.get_running_loop(), {})
        while (leader := flying.get(key)) is not None:
            await asyncio.wait((leader,))
            if not leader.cancelled():
                return leader.result(), True
        return await self._lead(flying, key, fetch), False

    async def _lead(
        self, flying: dict[bytes, asyncio.Future[_T]], key: bytes, fetch: Callable[[], Awaitable[_T]]
    ) -> _T:
        mine = flying[key] = asyncio.get_running_loop().create_future()
        try:
            value = await fetch()
            mine.set_result(value)
            return value
        except Exception as error:
            mine.set_exception(error)
            mine.exception()  # nobody may be waiting, and that is no mistake
            raise
        finally:
            mine.cancel()  # no effect on a future that has an outcome
            del flying[key]


@contextlib.asynccontextmanager
async def alone(path: Path, key: bytes) -> AsyncIterator[None]:
    """Hold the lock of `key` in the lock file `path`, waiting for whoever has it."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        pause = _FIRST_PAUSE
        while not _taken(descriptor, key):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        yield
    finally:
        os.close(descriptor)  # and with it goes the lock


def _taken(descriptor: int, key: bytes) -> bool:
    """Try to lock the byte of `key`; keys that share one merely wait for each other."""
    place = int.from_bytes(key[:8], "big") >> 2
    lock = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
    except BlockingIOError:
        return False
    return True
