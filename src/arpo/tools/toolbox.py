"""The one door to all tools.

Tools stay small because everything that holds for each of them is behind this door (`entry`). A call never raises on
account of a tool or of its arguments: bad arguments are the model's fault and become text, a time-out becomes text, and
whatever else goes wrong, be it an exception or a result that is none, becomes `infra_error`, which the model never sees
and which takes the trajectory out of the training signal. The one exception is asked for in the settings: a tool that
is down for everybody may end the step (`breaker`).
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from arpo.retry import Clock
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus
from arpo.tools.entry import Entry
from arpo.tools.limits import Limit
from arpo.tools.results import cap, clean
from arpo.tools.stats import ToolStats

__all__ = ["Limit", "ToolBox", "ToolStats", "cap", "clean"]
PATIENCE = 2.0
"""Seconds that closing waits for the calls of a tool, and then for the tool."""


class ToolBox:
    """The tools of a run, by name. `clock`: for tests that do not want to wait."""

    def __init__(
        self, tools: Sequence[Tool], limits: Mapping[str, Limit] | None = None, clock: Clock | None = None
    ) -> None:
        self.tools = tuple(tools)
        self.limits = {tool.name: (limits or {}).get(tool.name, Limit()) for tool in tools}
        self._entries = {tool.name: Entry(tool, self.limits[tool.name], clock or Clock()) for tool in tools}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def only(self, names: Collection[str]) -> "ToolBox":
        """These tools alone, behind the same doors: limits, counters and the state of being down are this box's."""
        chosen = ToolBox(())
        chosen.tools = tuple(tool for tool in self.tools if tool.name in names)
        chosen.limits = {name: self.limits[name] for name in chosen.names}
        chosen._entries = {name: self._entries[name] for name in chosen.names}
        return chosen

    @property
    def stats(self) -> dict[str, ToolStats]:
        """The counters of every tool since they were last taken."""
        return {name: entry.stats for name, entry in self._entries.items()}

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run one call, after waiting for its turn. Never raises on account of a tool or of its arguments.

        Raises ToolDownError if the tool is down and its `outage` says that nothing should go on without it.
        """
        entry = self._entries.get(name)
        if entry is None:
            return ToolResult(ToolStatus.TOOL_ERROR, f"There is no tool {name!r}; there are: {', '.join(self.names)}.")
        return await entry.call(arguments, context)

    def take_stats(self) -> dict[str, ToolStats]:
        """The counters since the last call of this, which start again from zero."""
        return {name: entry.take_stats() for name, entry in self._entries.items()}

    def drain(self) -> dict[str, float]:
        """The counters as metrics, `tools/<name>/...`; they start again from zero."""
        return {key: value for name, taken in self.take_stats().items() for key, value in taken.metrics(name).items()}

    async def close(self) -> None:
        """End the calls that were given up and release what the tools hold (threads, processes, connections).

        Takes a few seconds at the most; what would not end is named in the log. Tools without `close` need nothing.
        """
        await asyncio.gather(*(entry.close(PATIENCE) for entry in self._entries.values()))
