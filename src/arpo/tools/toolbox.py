"""The one door to all tools: schema, time limit, output cap, counters.

Tools stay small because everything that holds for each of them is here. A call never raises: bad arguments are the
model's fault and become text, a time-out becomes text, and whatever else goes wrong becomes `infra_error`, which the
model never sees and which takes the trajectory out of the training signal. Nothing is retried here: an empty output is
a success, and only a tool knows whether its failure may be tried again.
"""

import asyncio
import logging
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus

log = logging.getLogger(__name__)
_BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@dataclass(frozen=True, slots=True)
class Limit:
    """What one call may use: `timeout` in seconds, `max_chars` of result text."""

    timeout: float = 10.0
    max_chars: int = 2000


@dataclass(slots=True)
class ToolStats:
    """What one tool did since the counters were last taken. `latencies` in seconds, one per call."""

    calls: int = 0
    ok: int = 0
    errors: int = 0
    timeouts: int = 0
    infra_errors: int = 0
    cached: int = 0
    latencies: list[float] = field(default_factory=list)

    def count(self, result: ToolResult) -> None:
        self.calls += 1
        self.ok += result.status is ToolStatus.OK
        self.errors += result.status is ToolStatus.TOOL_ERROR
        self.timeouts += result.status is ToolStatus.TIMEOUT
        self.infra_errors += result.status is ToolStatus.INFRA_ERROR
        self.cached += result.cached
        self.latencies.append(result.latency)


class ToolBox:
    """The tools of a run, by name."""

    def __init__(self, tools: Sequence[Tool], limits: Mapping[str, Limit] | None = None) -> None:
        self.tools = tuple(tools)
        self.limits = {tool.name: (limits or {}).get(tool.name, Limit()) for tool in tools}
        self.stats = {tool.name: ToolStats() for tool in tools}
        self._by_name = {tool.name: tool for tool in tools}
        self._schemas = {tool.name: _validator(tool) for tool in tools}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run one call. Never raises on account of a tool or of its arguments."""
        if name not in self._by_name:
            return ToolResult(ToolStatus.TOOL_ERROR, f"There is no tool {name!r}; there are: {', '.join(self.names)}.")
        started = time.perf_counter()
        result = self._wrong_arguments(name, arguments) or await self._guarded(name, arguments, context)
        text = clean(cap(result.text, self.limits[name].max_chars))
        result = replace(result, text=text, latency=time.perf_counter() - started)
        self.stats[name].count(result)
        return result

    def _wrong_arguments(self, name: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        error = jsonschema.exceptions.best_match(self._schemas[name].iter_errors(dict(arguments)))
        if error is None:
            return None
        return ToolResult(ToolStatus.TOOL_ERROR, f"Wrong arguments for {name} at {error.json_path}: {error.message}")

    async def _guarded(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        timeout = self.limits[name].timeout
        expired = ToolResult(ToolStatus.TIMEOUT, f"Timed out after {timeout:g} s.")
        guard = asyncio.timeout(timeout)
        try:
            async with guard:
                result = await self._by_name[name].call(arguments, context)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is logged and counted as infra_error
            if isinstance(error, TimeoutError) and guard.expired():
                return expired
            log.warning("tool %s failed at %s %s: %r", name, context.task_id, context.path, error)
            return ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": f"{type(error).__name__}: {error}"})
        return replace(result, text=expired.text) if result.status is ToolStatus.TIMEOUT else result

    def take_stats(self) -> dict[str, ToolStats]:
        """The counters since the last call of this, which start again from zero."""
        taken, self.stats = self.stats, {name: ToolStats() for name in self.names}
        return taken

    async def close(self) -> None:
        """Release what the tools hold (worker processes, connections); tools without `close` need nothing."""
        for tool in self.tools:
            close = getattr(tool, "close", None)
            if close is not None:
                await close()


def _validator(tool: Tool) -> jsonschema.Draft202012Validator:
    try:
        jsonschema.Draft202012Validator.check_schema(dict(tool.parameters))
    except jsonschema.SchemaError as error:
        raise ToolSetupError(f"tool {tool.name!r}: its `parameters` are no JSON schema: {error.message}") from error
    return jsonschema.Draft202012Validator(dict(tool.parameters))


def cap(text: str, limit: int) -> str:
    """`text` in at most `limit` characters: head and tail are kept, a marker says how much was cut out between."""
    if len(text) <= limit:
        return text
    room = limit - len(_marker(len(text)))
    head = max(room, 0) * 2 // 3
    tail = max(room, 0) - head
    return text[:head] + _marker(len(text) - head - tail) + text[len(text) - tail :]


def _marker(cut: int) -> str:
    return f" [... {cut} characters cut ...] "


def clean(text: str) -> str:
    """`text` without what could fool a tokenizer, a terminal or a reader.

    Lone surrogates and control and bidirectional-override characters become U+FFFD; newline and tab stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if _unsafe(char) else char for char in text.replace("\r\n", "\n"))


def _unsafe(char: str) -> bool:
    if char in "\n\t":
        return False
    return unicodedata.category(char) in ("Cc", "Cs") or char in _BIDIRECTIONAL
