"""How often a tool may be called: places for calls at once, and a bucket of calls per second.

Both let in who came first. Whoever is cancelled while waiting gives its place on and has taken nothing from the bucket,
so a cancelled rollout cannot starve the next one. Nothing here belongs to an event loop: waiters bring a future of
their own loop, so one tool box serves several `asyncio.run` calls one after another, which asyncio's own primitives
refuse. Time is monotonic and comes from a `Clock`, so that tests need not wait.

The bucket fills at `rate` tokens per second up to max(1, rate) and is full at the start; a call takes one token. The
place comes before the token: a token taken early would let calls start faster than the rate once places are free.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Literal

from arpo.retry import Clock

__all__ = ["Bucket", "Clock", "Gate", "Limit", "Outage", "Turns"]

Outage = Literal["trajectory", "pause", "fail_step", "drop_group"]
"""What becomes of the calls of a tool that is down; see `breaker`."""

_ALMOST = 1e-9
"""Of a token: what rounding may lack."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the calls of one tool may use.

    `timeout`: seconds per call, waiting not counted; `max_chars` of result text; `concurrency`: calls at once (None:
    any number, but for tools in threads as many as there are threads); `rate`: calls per second (None: any);
    `grace`: seconds that a call has to clean up after its time limit before it is given up; `retries`: further tries
    of a call that failed in passing, each with the whole time limit; `breaker_after`: failed calls in a row that mean
    that the tool is down (None: it never is); `breaker_rest`: seconds until one call tries whether it is back;
    `outage`: what becomes of calls meanwhile; `outage_patience`: seconds that "pause" waits.
    """

    timeout: float = 10.0
    max_chars: int = 2000
    concurrency: int | None = None
    rate: float | None = None
    grace: float = 0.2
    retries: int = 2
    breaker_after: int | None = 10
    breaker_rest: float = 30.0
    outage: Outage = "trajectory"
    outage_patience: float = 600.0


class Turns:
    """A number of places, taken in the order of asking."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait for a place and take it; `leave` gives it back."""
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except BaseException:
            self._withdraw(turn)
            raise

    def _withdraw(self, turn: "asyncio.Future[None]") -> None:
        """The waiter is gone: out of the queue, or its place on to the next if it was just given one."""
        if turn in self._queue:
            self._queue.remove(turn)
        elif turn.done() and not turn.cancelled():
            self.leave()

    def leave(self) -> None:
        """Give a place back: to the first in the queue that still waits, in a loop that still runs."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._free += 1


class Bucket:
    """At most `rate` takes per second in the long run, max(1, rate) at a stroke after a rest."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate)
        self._clock = clock
        self._tokens = self.capacity
        self._filled = clock.now()
        self._line = Turns(1)

    async def take(self) -> None:
        """Wait for a token and take it. The first in line sleeps, the others wait behind it."""
        await self._line.enter()
        try:
            while (lacking := 1 - self._level()) > _ALMOST:
                await self._clock.sleep(lacking / self.rate)
            self._tokens -= 1
        finally:
            self._line.leave()

    def _level(self) -> float:
        now = self._clock.now()
        self._tokens = min(self.capacity, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        return self._tokens


class Gate:
    """The way to one tool: a place, then a token. Free of cost where there is no limit."""

    def __init__(self, concurrency: int | None, rate: float | None, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._places = None if concurrency is None else Turns(concurrency)
        self._bucket = None if rate is None else Bucket(rate, self._clock)

    async def enter(self) -> float:
        """Wait until a call may start; `leave` when it is over. Returns the seconds waited."""
        if self._places is None and self._bucket is None:
            return 0.0
        asked = self._clock.now()
        if self._places is not None:
            await self._places.enter()
        if self._bucket is not None:
            try:
                await self._bucket.take()
            except BaseException:
                self.leave()
                raise
        return self._clock.now() - asked

    def leave(self) -> None:
        """The call is over, or given up: the next may come."""
        if self._places is not None:
            self._places.leave()
