"""The one door to all tools: schema, limits, output cap, counters.

Tools stay small because everything that holds for each of them is here. A call never raises: bad arguments are the
model's fault and become text, a time-out becomes text, and whatever else goes wrong, be it an exception or a result
that is none, becomes `infra_error`, which the model never sees and which takes the trajectory out of the training
signal. Nothing is retried here: an empty output is a success, and only a tool knows whether its failure may be tried
again. A call first waits for its turn (`limits`), then runs under its time limit (`running`).
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jsonschema

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus
from arpo.tools.limits import Gate, Limit
from arpo.tools.results import cap, checked, clean, told
from arpo.tools.running import Calls, TimeUp, Watch
from arpo.tools.workers import DEFAULT_THREADS

__all__ = ["Limit", "ToolBox", "ToolStats", "cap", "clean"]
log = logging.getLogger(__name__)
PATIENCE = 2.0
"""Seconds that closing waits for the calls of a tool, and then for the tool."""
_KEPT = 4096
"""Latencies that are remembered, the latest."""
_NAMED = 10
"""Calls that are named in a line of the log."""


@dataclass(slots=True)
class ToolStats:
    """What one tool did since the counters were last taken.

    `abandoned`: calls that did not end at their time limit, or when their caller was cancelled, and were given up.
    `waited`: seconds that calls waited for their turn, in all. `in_flight`: most calls at once. `latencies`: seconds,
    one per call without its waiting, the last few thousand.
    """

    calls: int = 0
    ok: int = 0
    errors: int = 0
    timeouts: int = 0
    infra_errors: int = 0
    cached: int = 0
    abandoned: int = 0
    waited: float = 0.0
    in_flight: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def count(self, result: ToolResult) -> None:
        self.calls += 1
        self.ok += result.status is ToolStatus.OK
        self.errors += result.status is ToolStatus.TOOL_ERROR
        self.timeouts += result.status is ToolStatus.TIMEOUT
        self.infra_errors += result.status is ToolStatus.INFRA_ERROR
        self.cached += result.cached
        self.latencies.append(result.latency)


class _Entry:
    """One tool behind its limits. `running`: its calls at this moment."""

    def __init__(self, tool: Tool, limit: Limit, gave_up: Callable[[], None]) -> None:
        self.name, self.tool, self.limit = tool.name, tool, limit
        self.schema = _validator(tool)
        self.calls = Calls(tool, limit, gave_up)
        threads = None if self.calls.workers is None else DEFAULT_THREADS
        self.gate = Gate(limit.concurrency or threads, limit.rate)
        self.running = 0

    def wrong_arguments(self, arguments: Mapping[str, Any]) -> ToolResult | None:
        error = jsonschema.exceptions.best_match(self.schema.iter_errors(dict(arguments)))
        if error is None:
            return None
        text = f"Wrong arguments for {self.name} at {error.json_path}: {error.message}"
        return ToolResult(ToolStatus.TOOL_ERROR, text)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext, watch: Watch) -> ToolResult:
        """Run one call that has had its turn."""
        expired = f"Timed out after {self.limit.timeout:g} s."
        try:
            result = checked(await self.calls.run(arguments, context, watch))
        except TimeUp:
            return ToolResult(ToolStatus.TIMEOUT, expired)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is logged and counted as infra_error
            log.warning("tool %s failed at %s %s: %s", self.name, context.task_id, context.path, told(error))
            return ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": told(error)})
        return replace(result, text=expired) if result.status is ToolStatus.TIMEOUT else result

    async def close(self) -> None:
        """End the calls that were given up, then the tool; whatever goes wrong is logged."""
        left = await self.calls.close(PATIENCE)
        if left:
            log.warning("tool %s: %d calls cannot be ended: %s", self.name, len(left), ", ".join(left[:_NAMED]))
        try:
            await asyncio.wait_for(_closed(self.tool), PATIENCE)
        except Exception as error:  # noqa: BLE001 - the other tools are to be closed all the same
            log.warning("tool %s: closing it failed: %s", self.name, told(error))


class ToolBox:
    """The tools of a run, by name."""

    def __init__(self, tools: Sequence[Tool], limits: Mapping[str, Limit] | None = None) -> None:
        self.tools = tuple(tools)
        self.limits = {tool.name: (limits or {}).get(tool.name, Limit()) for tool in tools}
        self.stats = {tool.name: ToolStats() for tool in tools}
        self._entries = {
            tool.name: _Entry(tool, self.limits[tool.name], partial(self._gave_up, tool.name)) for tool in tools
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run one call, after waiting for its turn. Never raises on account of a tool or of its arguments."""
        entry = self._entries.get(name)
        if entry is None:
            return ToolResult(ToolStatus.TOOL_ERROR, f"There is no tool {name!r}; there are: {', '.join(self.names)}.")
        wrong = entry.wrong_arguments(arguments)
        if wrong is not None:
            return self._counted(name, wrong, 0.0)
        waited = await entry.gate.enter()
        watch = Watch()
        self._starts(entry)
        try:
            result = await entry.call(arguments, context, watch)
        finally:
            entry.running -= 1
            entry.gate.leave()
        self.stats[name].waited += waited + watch.off
        return self._counted(name, result, watch.used())

    def _starts(self, entry: _Entry) -> None:
        entry.running += 1
        stats = self.stats[entry.name]
        stats.in_flight = max(stats.in_flight, entry.running)

    def _gave_up(self, name: str) -> None:
        self.stats[name].abandoned += 1

    def _counted(self, name: str, result: ToolResult, latency: float) -> ToolResult:
        text = clean(cap(result.text, self.limits[name].max_chars))
        result = replace(result, text=text, latency=latency)
        self.stats[name].count(result)
        return result

    def take_stats(self) -> dict[str, ToolStats]:
        """The counters since the last call of this, which start again from zero."""
        taken, self.stats = self.stats, {name: ToolStats() for name in self.names}
        return taken

    async def close(self) -> None:
        """End the calls that were given up and release what the tools hold (threads, processes, connections).

        Takes a few seconds at the most; what would not end is named in the log. Tools without `close` need nothing.
        """
        await asyncio.gather(*(entry.close() for entry in self._entries.values()))


async def _closed(tool: Tool) -> None:
    close = getattr(tool, "close", None)
    result = close() if close is not None else None
    if inspect.isawaitable(result):
        await result


def _validator(tool: Tool) -> jsonschema.Draft202012Validator:
    try:
        jsonschema.Draft202012Validator.check_schema(dict(tool.parameters))
    except jsonschema.SchemaError as error:
        raise ToolSetupError(f"tool {tool.name!r}: its `parameters` are no JSON schema: {error.message}") from error
    return jsonschema.Draft202012Validator(dict(tool.parameters))
