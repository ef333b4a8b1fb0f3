"""When to ask a server again, and when to leave it alone: back-off, Retry-After, and a breaker.

The breaker counts requests that failed after all their retries, not attempts: a server that restarts costs nobody more
than a pause, however many requests were in flight. After `threshold` such failures in a row everybody is refused at
once; after `cooldown` seconds one request may try whether the server is back. A refusal says that the server is well,
but ten times as many refusals and nothing else mean that it will have none of this run.

Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from arpo.errors import EngineDownError, EngineError

_MANY = 10
"""So many times the threshold of refusals in a row open the breaker, too."""


class RefusedError(EngineError):
    """The server is well and will not answer this request."""


class BreakerOpenError(EngineDownError):
    """Nothing was sent, because too much failed before."""


@dataclass(frozen=True)
class Clock:
    """Time and luck, so that tests need neither. `now` is monotonic, `wall` is seconds since 1970."""

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


def backoff(attempt: int, draw: float, *, base: float = 0.5, cap: float = 30.0) -> float:
    """Seconds before try number `attempt` + 2: uniform up to base * 2^attempt, at the most `cap`."""
    return draw * min(cap, base * 2.0**attempt)


def retry_after(value: str | None, wall: float) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None if it says nothing usable."""
    if value is None:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - wall, 0.0)
    except ValueError:
        return None


@dataclass
class Breaker:
    """Closed while requests succeed; open after `threshold` failed in a row; half open for one request afterwards."""

    threshold: int
    cooldown: float = 30.0
    clock: Clock = field(default_factory=Clock)
    failures: int = 0
    refusals: int = 0
    reason: str = ""
    opened: float | None = None
    probing: bool = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one request, retries included. EngineDownError if nobody may ask or this failure is one too many."""
        self.check(admitting=True)
        try:
            yield
        except RefusedError as error:
            self._close(refused=True)
            if self.refusals >= _MANY * self.threshold:
                self._open(f"{error} ({self.refusals} requests refused in a row)")
                raise EngineDownError(self.reason) from error
            raise
        except BreakerOpenError:
            raise
        except EngineDownError as error:
            self._open(str(error))
            raise
        except EngineError as error:
            self._count(error)
            raise
        except BaseException:
            self.probing = False
            raise
        else:
            self._close()

    def check(self, *, admitting: bool = False) -> None:
        """Raise BreakerOpenError while open. `admitting`: take the one place of the half-open state if it is free."""
        if self.opened is None:
            return
        if self.clock.now() - self.opened < self.cooldown or (admitting and self.probing):
            raise BreakerOpenError(self.reason)
        if admitting:
            self.probing = True

    def _count(self, error: EngineError) -> None:
        self.failures += 1
        if self.opened is not None or self.failures >= self.threshold:
            self._open(f"{error} ({self.failures} requests failed in a row; nothing more is sent for now)")
            raise EngineDownError(self.reason) from error

    def _open(self, reason: str) -> None:
        self.opened, self.reason, self.probing = self.clock.now(), reason, False

    def _close(self, *, refused: bool = False) -> None:
        self.refusals = self.refusals + 1 if refused else 0
        self.failures, self.opened, self.probing = 0, None, False
