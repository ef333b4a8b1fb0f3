"""An event loop whose time jumps: nobody waits, and everything happens in the order in which it would.

asyncio asks a selector to wait until the next timer is due. This one returns at once and says that it is later now. So
code that sleeps, waits with a time limit or is awaited runs unchanged, and hours pass in seconds. Between two timers
the loop runs whatever is ready in the order of its scheduling, so a simulation without threads is deterministic.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class _Jump(selectors.SelectSelector):
    """Advances `now` in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation stands still: everybody waits for somebody and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and is as late as the timers that were due. No threads, no sockets, no child processes."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run_virtual(main: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
    """What `main()` returns, run on a fresh virtual loop from time 0."""
    found: list[_Value] = []

    async def keep() -> None:
        found.append(await main())

    # asyncio.Runner formats the result of its task when it gives the signal handler back: so there is none.
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(keep())
    return found[0]
