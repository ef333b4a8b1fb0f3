"""When to ask again, and when to leave somebody alone: back-off, Retry-After, and a circuit that opens.

Model servers and tools fail alike, so both rooms build on this one. It knows no exceptions: what counts as a failure,
and what to do while the circuit is open, is the caller's to say.

Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?")


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
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        return max(float(text), 0.0)
    try:
        return max(parsedate_to_datetime(text).timestamp() - wall, 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


@dataclass
class Circuit:
    """Closed while things succeed; open after `threshold` failures in a row; after `rest` seconds one may try.

    `failures`: in a row; `reason`: why it opened last; `openings`: how often it opened, a failed try not counted.
    """

    threshold: int
    rest: float = 30.0
    clock: Clock = field(default_factory=Clock)
    failures: int = 0
    openings: int = 0
    reason: str = ""
    _opened: float | None = None
    _probing: bool = False

    @property
    def closed(self) -> bool:
        """Whether everybody may pass."""
        return self._opened is None

    def wait(self) -> float:
        """Seconds until somebody may try again; 0 while closed, and once the rest is over."""
        return 0.0 if self._opened is None else max(self._opened + self.rest - self.clock.now(), 0.0)

    @property
    def passable(self) -> bool:
        """Whether `admits` would let one pass."""
        return self._opened is None or not (self._probing or self.wait() > 0)

    def admits(self) -> bool:
        """Whether one may pass now. After the rest only one may, until it has told what it met: `succeed` or the like.

        Whoever is admitted must tell.
        """
        passes = self.passable
        self._probing = (passes and self._opened is not None) or self._probing
        return passes

    def succeed(self) -> None:
        """It went well: closed."""
        self.failures, self._opened, self._probing = 0, None, False

    def fail(self, reason: str, since: float | None = None) -> bool:
        """It failed. `since`: when it was admitted; what was under way when the circuit opened tells nothing new.

        Returns whether the circuit is open now.
        """
        if self._is_late(since):
            return True
        self.failures += 1
        if self._opened is not None or self.failures >= self.threshold:
            self.open(reason)
        return self._opened is not None

    def open(self, reason: str) -> None:
        """Open it at once, whatever was counted."""
        self.openings += self._opened is None
        self._opened, self.reason, self._probing = self.clock.now(), reason, False

    def release(self, since: float | None = None) -> None:
        """It came to nothing that tells anything; the next may try. `since`: as for `fail`."""
        self._probing = self._probing and self._is_late(since)

    def _is_late(self, since: float | None) -> bool:
        return self._opened is not None and since is not None and since < self._opened
