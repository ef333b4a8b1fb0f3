"""Tools that are as slow as one says: the real ones, and a wait before each call.

A rollout that waits for tools is measured with latencies that every arm meets alike: the wait of a call is a function
of where it stands (seed, task, path, number of the call) and not of when it is made. `heavy` is the latency of a shared
search service, log-normal: half of the calls take up to 50 ms, one in a hundred 2 s or longer.
"""

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from arpo.errors import ConfigError
from arpo.seeds import uniform
from arpo.tools.base import Tool, ToolContext, ToolResult
from arpo.tools.toolbox import ToolBox

HEAVY_MEDIAN, HEAVY_P99 = 0.05, 2.0
_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s)?")
_SPARE = 120.0
"""Seconds that the time limit of a call is raised by: what is measured is waiting, not time-outs."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before a call: log-normal with this `median` and `sigma` (of the logarithm); 0: always the median."""

    name: str
    median: float
    sigma: float = 0.0

    def quantile(self, share: float) -> float:
        """Seconds that `share` of the calls stay below, 0 < share < 1."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(share))

    def at(self, *place: str | int) -> float:
        """Seconds that a call at this place waits."""
        if not self.sigma:
            return self.median
        return self.quantile(min(max(uniform(*place, "latency"), 2.0**-53), 1 - 2.0**-53))


HEAVY = Latency("heavy", HEAVY_MEDIAN, math.log(HEAVY_P99 / HEAVY_MEDIAN) / NormalDist().inv_cdf(0.99))


def parse_latency(text: str) -> Latency:
    """`heavy`, or a fixed time: `0`, `50ms`, `1.5s`. Raises ConfigError for anything else."""
    name = text.strip()
    if name == HEAVY.name:
        return HEAVY
    match = _FORM.fullmatch(name)
    if match is None or (match[2] is None and float(match[1]) != 0):
        raise ConfigError(f"--tools {name}: write 0, a time like 50ms or 1.5s, or heavy")
    return Latency(name, float(match[1]) / (1000 if match[2] == "ms" else 1))


class DelayedTool:
    """A tool of `toolbox` that is asked after a wait. The tool stays that box's: closing this one's leaves it open."""

    def __init__(self, tool: Tool, toolbox: ToolBox, latency: Latency) -> None:
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters
        self.stateless = bool(getattr(tool, "stateless", False))
        self._toolbox, self._latency = toolbox, latency

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Wait as long as the call's place says, then call the tool."""
        seconds = self._latency.at(context.seed, context.task_id, context.path, context.call_index)
        if seconds:
            await asyncio.sleep(seconds)
        return await self._toolbox.call(self.name, arguments, context)


def delayed(toolbox: ToolBox, latency: Latency) -> ToolBox:
    """A box of the same tools behind `latency`. Their own limits hold; waiting is no part of their time."""
    limits = {name: replace(limit, timeout=limit.timeout + _SPARE) for name, limit in toolbox.limits.items()}
    return ToolBox([DelayedTool(tool, toolbox, latency) for tool in toolbox.tools], limits)
