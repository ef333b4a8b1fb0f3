"""Who may use an engine's weights: many samples at once, or one publication.

A publication waits until nothing samples, and whatever is asked meanwhile waits for it, so a segment has one version.
Plain futures instead of asyncio's locks, because those belong to the first event loop that contends for them, and an
engine outlives a loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """Enter by `sampling()` or by `alone()`; whoever waits for `alone()` keeps new samples out."""

    def __init__(self) -> None:
        self._sampling = 0
        self._publishing = 0
        self._busy = False
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        await self._until(lambda: not self._publishing)
        self._sampling += 1
        try:
            yield
        finally:
            self._sampling -= 1
            self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self._publishing += 1
        try:
            await self._until(lambda: not self._sampling and not self._busy)
            self._busy = True
            try:
                yield
            finally:
                self._busy = False
        finally:
            self._publishing -= 1
            self._wake()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                self._waiting.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
