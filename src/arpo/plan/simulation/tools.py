"""Simulated tools: one pool of workers behind the real tool box, with latencies of a mix.

The tool box, its queue and the sharing of equal calls are the real ones. A call's latency is a function of what it
asks, so the order of calls changes nothing.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from arpo.plan.latency import Mix
from arpo.retry import Clock
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.toolbox import Limit, ToolBox


class SimulatedTool:
    """Answers after as long as the mix says. `busy`: worker-seconds; `started`, `ended`: calls."""

    name = "tool"
    description = "whatever the mix holds"
    parameters: Mapping[str, Any] = {"type": "object"}
    stateless = True

    def __init__(self, mix: Mix, seed: int) -> None:
        self.mix, self.seed = mix, seed
        self.busy = 0.0
        self.started = self.ended = 0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Sleep, then a result."""
        place = (self.seed, context.task_id, str(arguments["query"]))
        seconds = self.mix.pick(*place).at(*place)
        self.started += 1
        await asyncio.sleep(seconds)
        self.busy += seconds
        self.ended += 1
        return ToolResult(ToolStatus.OK, "result", latency=seconds)


class SimulatedToolBox(ToolBox):
    """The real box around that tool. `asked`, `in_system`: calls, and seconds from asking to answering."""

    def __init__(self, tool: SimulatedTool, workers: int) -> None:
        loop = asyncio.get_running_loop()
        limit = Limit(timeout=1e9, concurrency=workers, breaker_after=None)
        super().__init__([tool], {tool.name: limit}, Clock(now=loop.time))
        self.asked = 0
        self.in_system = 0.0

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """As the box does; the time is taken."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        self.asked += 1
        result = await super().call(name, arguments, context)
        self.in_system += loop.time() - since
        return result
