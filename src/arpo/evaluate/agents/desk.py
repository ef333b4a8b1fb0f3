"""Tools that a method makes for one task: they use the run's tools and the model, and have no limits of their own.

What they call is behind the run's tool box with its limits and counters; a second time limit around that would count
the model's own work as the tool's. So their calls go straight through. An engine that could not answer one of them
costs the trajectory, as anywhere; an engine that is gone ends everything.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from arpo.errors import EngineDownError, EngineError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.results import clean, told
from arpo.tools.toolbox import ToolBox


class Own(Protocol):
    """A tool of a method's."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Awaitable[ToolResult]: ...


class Desk(ToolBox):
    """The tools of one task's trajectories."""

    def __init__(self, tools: Sequence[Own]) -> None:
        super().__init__(tools)
        self._own = {tool.name: tool for tool in tools}

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run one call; `name` is one of the tools, `arguments` fit it. Raises EngineDownError."""
        try:
            result = await self._own[name].call(arguments, context)
        except EngineDownError:
            raise
        except EngineError as error:
            return ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": told(error), "fault": "engine"})
        return replace(result, text=clean(result.text))
