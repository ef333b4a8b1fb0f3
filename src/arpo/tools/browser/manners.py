"""How often and how many at once: what a host is asked of us, over all trajectories of this process.

Two requests to a host start at least `interval` seconds apart, more if the host asked for it, and no more than
`per_host` are under way. Who asked first is first. Waiting counts against nobody's time limit, but nobody waits longer
than `max_wait`: a site that wants to be read slowly must not hold up a rollout for hours. Nothing here belongs to an
event loop.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from arpo.tools.limits import Clock, Turns
from arpo.tools.running import off_the_clock

_REMEMBERED = 10_000
"""Hosts, the last ones."""


class CrowdedError(Exception):
    """Too many requests wait for this host already."""


@dataclass(eq=False, slots=True)
class _Host:
    places: Turns
    interval: float
    next_start: float = float("-inf")
    resting_until: float = float("-inf")
    lookup: Turns = field(default_factory=lambda: Turns(1))
    users: int = 0


class Manners:
    """The queue before each host."""

    def __init__(
        self, interval: float = 1.0, per_host: int = 2, clock: Clock | None = None, *, max_wait: float = 60.0
    ) -> None:
        """Seconds between starts, requests at once, and seconds that a request waits for its turn at the most."""
        self._interval, self._per_host, self._clock = interval, per_host, clock or Clock()
        self._max_wait = max_wait
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Around one request to `host`: begins when it may start. Raises CrowdedError if that takes too long."""
        state = self._state(host)
        state.users += 1
        try:
            await self._enter(state)
            try:
                yield
            finally:
                state.places.leave()
        finally:
            state.users -= 1

    async def _enter(self, state: _Host) -> None:
        """Wait for a place and for the time to start."""
        try:
            with off_the_clock():
                async with asyncio.timeout(self._max_wait):
                    await state.places.enter()
                    try:
                        await self._wait(state)
                    except BaseException:
                        state.places.leave()
                        raise
        except TimeoutError as error:
            raise CrowdedError from error

    async def _wait(self, state: _Host) -> None:
        now = self._clock.now()
        start = max(now, state.next_start, state.resting_until)
        state.next_start = start + state.interval
        if start > now:
            await self._clock.sleep(start - now)

    @asynccontextmanager
    async def lookup(self, host: str) -> AsyncIterator[None]:
        """Around what one should find out about a host, while the others wait for it."""
        state = self._state(host)
        state.users += 1
        try:
            with off_the_clock():
                await state.lookup.enter()
            try:
                yield
            finally:
                state.lookup.leave()
        finally:
            state.users -= 1

    def slow_down(self, host: str, interval: float) -> None:
        """The host asked for at least `interval` seconds between requests."""
        state = self._state(host)
        state.interval = max(state.interval, interval)

    def pause(self, host: str, seconds: float) -> None:
        """The host asked to be left alone for so long."""
        state = self._state(host)
        state.resting_until = max(state.resting_until, self._clock.now() + seconds)

    def resting(self, host: str) -> float:
        """Seconds for which the host still wants to be left alone."""
        return max(self._state(host).resting_until - self._clock.now(), 0.0)

    def _state(self, host: str) -> _Host:
        state = self._hosts.get(host)
        if state is None:
            state = self._hosts[host] = _Host(Turns(self._per_host), self._interval)
            self._forget()
        self._hosts.move_to_end(host)
        return state

    def _forget(self) -> None:
        """Drop a host that was asked long ago, unless somebody waits there or it is still resting."""
        if len(self._hosts) > _REMEMBERED:
            oldest = list(islice(self._hosts.items(), 100))
            now = self._clock.now()
            free = (name for name, host in oldest if not host.users and max(host.next_start, host.resting_until) <= now)
            self._hosts.pop(next(free, ""), None)
