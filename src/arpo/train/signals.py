"""Ctrl-C once finishes the step and saves; twice stops at once. SIGTERM is treated like the first Ctrl-C."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Set by the first signal; the loop looks at it between steps."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 75 (try again) after SIGTERM, 0 otherwise."""
        if self.signal is None:
            return 0
        return 130 if self.signal == signal.SIGINT else 75


@contextlib.contextmanager
def graceful(say: Callable[[str], None], again: float = 0.0) -> Iterator[StopRequest]:
    """Inside the block the first SIGINT or SIGTERM only sets the request; the second one interrupts.

    One within `again` seconds of the first is the first: a launcher passes on what the terminal has sent to all.
    """
    request, since = StopRequest(), 0.0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal since
        if request and time.monotonic() - since >= again:
            raise KeyboardInterrupt
        if request:
            return
        request.signal, since = number, time.monotonic()
        say("stopping after this step; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
