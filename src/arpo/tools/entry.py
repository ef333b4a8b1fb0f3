"""One tool behind its limits: from the arguments of a call to a result that is one.

A call is checked against the schema, waits for its turn, runs under its time limit, is made again if that makes sense,
and tells the breaker what came of it. What the tool raises or returns becomes a status: a `ToolError` is the model's
doing and its text is shown; anything else that is raised, or is no result, is the machinery's and becomes
`infra_error`. An exception may say more about itself by two attributes: `fault`, a short name under which it is
counted, and `outage = False` if it says nothing about whether the tool is up.
"""

import asyncio
import inspect
import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jsonschema

from arpo.errors import ToolSetupError
from arpo.retry import Clock
from arpo.tools.base import Tool, ToolContext, ToolError, ToolResult, ToolStatus, TransientError
from arpo.tools.breaker import Breaker, Patience, Refused
from arpo.tools.limits import Gate, Limit
from arpo.tools.results import bounded, cap, checked, clean, told, words
from arpo.tools.retry import is_idempotent, pause
from arpo.tools.running import Calls, OutOfOrder, TimeUp, Watch
from arpo.tools.stats import ToolStats
from arpo.tools.workers import DEFAULT_THREADS

log = logging.getLogger(__name__)
_NAMED = 10
"""Calls that are named in a line of the log."""


@dataclass(frozen=True, slots=True)
class _Try:
    """What one try gave, and the seconds it used. `error`: what was raised; `tells`: of an outage, if it failed;
    `since`: when it was let in.
    """

    result: ToolResult
    seconds: float
    error: Exception | None = None
    tells: bool = True
    since: float = 0.0


class Entry:
    """One tool behind its limits. `running`: its calls at this moment."""

    def __init__(self, tool: Tool, limit: Limit, clock: Clock) -> None:
        self.name, self.tool, self.limit = tool.name, tool, limit
        self.stats = ToolStats()
        self.running = 0
        self.calls = Calls(tool, limit, self._gave_up)
        threads = None if self.calls.workers is None else DEFAULT_THREADS
        self.gate = Gate(limit.concurrency or threads, limit.rate, clock)
        self.breaker = Breaker(tool.name, limit, self.gate, clock, self._opened)
        self._clock = clock
        self._schema = _validator(tool)
        self._idempotent = is_idempotent(tool)

    def _gave_up(self) -> None:
        self.stats.abandoned += 1

    def _opened(self) -> None:
        self.stats.openings += 1

    def take_stats(self) -> ToolStats:
        """The counters, which start again from zero."""
        taken, self.stats = self.stats, ToolStats()
        return taken

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """One call. Raises ToolDownError alone, and only if `limit.outage` asks for it."""
        result = self._wrong_arguments(arguments)
        if result is None:
            result = await self._answer(arguments, context)
        result = replace(result, text=clean(cap(result.text, self.limit.max_chars)))
        self.stats.count(result)
        return result

    def _wrong_arguments(self, arguments: Mapping[str, Any]) -> ToolResult | None:
        error = jsonschema.exceptions.best_match(self._schema.iter_errors(dict(arguments)))
        if error is None:
            return None
        text = f"Wrong arguments for {self.name} at {error.json_path}: {error.message}"
        return ToolResult(ToolStatus.TOOL_ERROR, text, data={"fault": "arguments"})

    async def _answer(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """The result of as many tries as it takes; its latency is the time of all tries."""
        patience, used = Patience(self.limit.outage_patience, self._clock), 0.0
        for attempt in itertools.count():
            try:
                waited = await self.breaker.enter(patience)
            except Refused as refused:
                return refused.result
            self.stats.waited += waited
            once = await self._try(arguments, context)
            used += once.seconds
            if (wait := self._pause(once, attempt, context)) is not None:
                self.stats.retries += 1
                self.stats.waited += wait
                await self._clock.sleep(wait)
                continue
            down = self.breaker.settle(once.result, once.since, tells=once.tells)
            if not (down and self.limit.outage == "pause" and self._may_repeat(once)):
                self.stats.latencies.append(used)
                result = self.breaker.failed(once.result) if down else once.result
                return replace(result, latency=used)
        raise AssertionError("a call either ends or is made again")

    def _may_repeat(self, once: _Try) -> bool:
        return self._idempotent and isinstance(once.error, TransientError)

    def _pause(self, once: _Try, attempt: int, context: ToolContext) -> float | None:
        """Seconds until the call is made again; None if it is not: whoever tries for the others tries once."""
        if not isinstance(once.error, TransientError) or not self._may_repeat(once):
            return None
        if attempt >= self.limit.retries or self.breaker.down:
            return None
        return pause(once.error, attempt, self.name, context)

    async def _try(self, arguments: Mapping[str, Any], context: ToolContext) -> _Try:
        """Run one call that has had its turn, and give the place back."""
        self.running += 1
        self.stats.in_flight = max(self.stats.in_flight, self.running)
        watch, since = Watch(), self._clock.now()
        try:
            once = await self._result(arguments, context, watch)
        except BaseException:
            self.breaker.settle(None, since)
            raise
        finally:
            self.running -= 1
            self.breaker.leave()
        self.stats.waited += watch.off
        return replace(once, seconds=watch.used(), since=since)

    async def _result(self, arguments: Mapping[str, Any], context: ToolContext, watch: Watch) -> _Try:
        try:
            returned = await self.calls.run(arguments, context, watch)
        except TimeUp:
            return _Try(self._expired(), 0.0)
        except ToolError as error:
            return _Try(ToolResult(ToolStatus.TOOL_ERROR, words(error)), 0.0)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is logged and counted as infra_error
            log.warning("tool %s failed at %s %s: %s", self.name, context.task_id, context.path, told(error))
            return _failure(error)
        return self._returned(returned, context)

    def _returned(self, returned: Any, context: ToolContext) -> _Try:
        try:
            result = bounded(checked(returned))
        except Exception as error:  # noqa: BLE001 - a result that is none may fail in any way when looked at
            log.warning("tool %s gave no result at %s %s: %s", self.name, context.task_id, context.path, told(error))
            data = {"error": told(error), "fault": "no_result"}
            return _Try(ToolResult(ToolStatus.INFRA_ERROR, "", data=data), 0.0)
        return _Try(replace(result, text=self._expired().text) if result.status is ToolStatus.TIMEOUT else result, 0.0)

    def _expired(self) -> ToolResult:
        return ToolResult(ToolStatus.TIMEOUT, f"Timed out after {self.limit.timeout:g} s.")

    async def close(self, patience: float) -> None:
        """End the calls that were given up, then the tool; whatever goes wrong is logged."""
        left = await self.calls.close(patience)
        if left:
            log.warning("tool %s: %d calls cannot be ended: %s", self.name, len(left), ", ".join(left[:_NAMED]))
        try:
            await asyncio.wait_for(_closed(self.tool), patience)
        except Exception as error:  # noqa: BLE001 - the other tools are to be closed all the same
            log.warning("tool %s: closing it failed: %s", self.name, told(error))


def _failure(error: Exception) -> _Try:
    """What an exception becomes, and what it says of itself."""
    kind = "transient" if isinstance(error, TransientError) else "exception"
    kind = "out_of_order" if isinstance(error, OutOfOrder) else str(getattr(error, "fault", kind))
    result = ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": told(error), "fault": kind})
    return _Try(result, 0.0, error, bool(getattr(error, "outage", True)))


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
