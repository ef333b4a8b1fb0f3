"""Tools of every bad habit, a clock that need not be waited for, and what a tool box leaves behind."""

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from arpo.retry import Clock
from arpo.tools.base import ToolContext, ToolResult
from arpo.tools.toolbox import Limit, ToolBox

HERE = ToolContext("task 7", "r1/2.1", call_index=3)


def tool(call: Any, **more: Any) -> Any:
    """A tool named t that takes anything."""
    return SimpleNamespace(**{"name": "t", "description": "", "parameters": {"type": "object"}, "call": call, **more})


def box(call: Any, *, more: dict[str, Any] | None = None, clock: Clock | None = None, **limits: Any) -> ToolBox:
    """A tool box with the tool t alone."""
    return ToolBox([tool(call, **(more or {}))], {"t": Limit(**limits)}, clock)


async def ask(tools: ToolBox, context: ToolContext = HERE) -> ToolResult:
    return await tools.call("t", {}, context)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition that must come true; the test's own time limit is the guard."""
    while not condition():
        await asyncio.sleep(0.002)


def tool_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tool ")]


def tasks_left() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


class FakeClock(Clock):
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 1e6

    def now(self) -> float:  # type: ignore[override]
        return self.time

    async def sleep(self, seconds: float) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.time += seconds


class Stubborn:
    """Goes on through any number of cancellations until it is let go (or for a time, lest a failed test hang)."""

    def __init__(self) -> None:
        self.free = False
        self.started = 0
        self.cancelled = 0
        self.ended = 0

    async def __call__(self, arguments: Any, context: ToolContext) -> str:
        self.started += 1
        end = time.monotonic() + 20
        while not self.free and time.monotonic() < end:
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                self.cancelled += 1
        self.ended += 1
        return "too late"


def blocking(action: Callable[[ToolContext], Any]) -> Any:
    """A plain function, which runs in a thread."""

    def call(arguments: Any, context: ToolContext) -> Any:
        return action(context)

    return call
