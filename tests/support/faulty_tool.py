"""A tool that fails as tools do: too slow, with an exception, with garbage, or deaf to being cancelled.

Which calls fail, and how, is a function of the fault seed, the arguments and the call's own seed, so it does not depend
on what finishes first. `met` counts the faults that were acted out.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from arpo.seeds import derive
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus

FAULTS = ("timeout", "exception", "garbage", "hang")
_SCALE = 1 << 20
_EXCEPTIONS = (RuntimeError("down"), OSError(28, "disk full"), TimeoutError("of its own"), SystemExit(1), KeyError("x"))
_GARBAGE: tuple[Any, ...] = (
    None,
    b"\xff\xfe",
    17,
    ToolResult(ToolStatus.OK, b"bytes"),  # type: ignore[arg-type]
    ToolResult("splendid", "text"),  # type: ignore[arg-type]
    "\x1b[2J\x00\ud800\u202e",
    ToolResult(ToolStatus.OK, "long " * 200_000),
)


class FaultyTool:
    """`tool`, of whose calls the share `rate` goes wrong.

    A "timeout" waits until it is cancelled. A "hang" outlasts the time limit `limit` by `late` seconds whatever anybody
    says; in a thread (`blocking`), where nothing can be cancelled, both do.
    """

    def __init__(
        self, tool: Tool, *, seed: int, limit: float, rate: float = 0.05, late: float = 0.2, blocking: bool = False
    ) -> None:
        self.tool, self.seed, self.rate = tool, seed, rate
        self.limit, self.late, self.blocking = limit, late, blocking
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters
        self.stateless = getattr(tool, "stateless", False)
        self.met: Counter[str] = Counter()

    def fault(self, arguments: Mapping[str, Any], context: ToolContext) -> str | None:
        """Which fault this call has, if any."""
        luck = self._draw("fault", arguments, context) % _SCALE / _SCALE
        return FAULTS[int(luck / self.rate * len(FAULTS))] if luck < self.rate else None

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        fault = self.fault(arguments, context)
        if fault is None:
            return await self.tool.call(arguments, context)
        self.met[fault] += 1
        which = self._draw("which", arguments, context)
        if fault == "exception":
            raise _EXCEPTIONS[which % len(_EXCEPTIONS)]
        if fault == "garbage":
            return _GARBAGE[which % len(_GARBAGE)]
        if self.blocking:
            time.sleep(self.limit + self.late)
        else:
            await (_for_ever() if fault == "timeout" else _deaf(self.limit + self.late))
        return "too late"

    async def close(self) -> None:
        close = getattr(self.tool, "close", None)
        if close is not None:
            await close()

    def _draw(self, purpose: str, arguments: Mapping[str, Any], context: ToolContext) -> int:
        spelling = json.dumps(dict(arguments), sort_keys=True)
        return derive(purpose, self.seed, self.name, spelling, context.task_id, context.seed)


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _deaf(seconds: float) -> None:
    """Sleep through every cancellation."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)
