"""Python for the policy, in a sandbox that has no file system and no network to begin with.

pydantic-monty interprets a subset of Python in worker processes: a call costs a fraction of a millisecond, a crash
costs a worker and nothing else. Each call gets a fresh session, so calls share no state and the branches of a tree
cannot touch each other. Clock, sleep and random numbers are fixed, so that a call is a function of its code and seed;
that also lets a call that outlives the quick limit be run again from the start in a thread, instead of holding up
the event loop in which everything else (and in a fixed order) happens.
"""

import ast
import asyncio
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_monty import (
    CollectString,
    Monty,
    MontyCrashedError,
    MontyRuntimeError,
    MontySyntaxError,
    OSPolicy,
    ResourceLimits,
)

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.limits import Turns
from arpo.tools.running import off_the_clock
from arpo.tools.settings import PythonSettings

_CORES = min(os.cpu_count() or 1, 24)
NO_OUTPUT = "(no output)"
_MAX_OUTPUT = (1 << 20) - 1
"""Bytes of print output that are collected; odd, so that its overflow differs from every memory limit."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


@dataclass(frozen=True, slots=True)
class _Job:
    """One piece of code to run. `many_lines`: an error message then says in which line."""

    code: str
    seed: int
    many_lines: bool


class PythonTool:
    """Runs code; the result is what it printed, and the value of a last expression as a notebook shows it."""

    name = "python"
    description = "runs Python code and returns what it prints; each call starts afresh"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the code to run", "minLength": 1}},
        "required": ["code"],
        "additionalProperties": False,
    }
    stateless = True

    def __init__(self, settings: PythonSettings | None = None, quick: float = 0.05) -> None:
        """`quick`: seconds that a call may take in the calling thread before it is run in another one.

        Raises ToolSetupError if the sandbox does not start.
        """
        self.settings = settings or PythonSettings()
        self.quick = min(quick, self.settings.timeout)
        now = self.settings.now
        self._now: datetime = now if now.tzinfo else now.replace(tzinfo=UTC)
        self._pool = _start_pool(1)
        self._slow_pool: Monty | None = None
        self._slow_turns = Turns(_CORES)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run `arguments["code"]`; random numbers start from `context.seed`."""
        code = arguments["code"]
        job = _Job(show_last_value(code), context.seed, "\n" in code.strip())
        result = self._run(self._pool, job, self.quick)
        if result.status is ToolStatus.TIMEOUT and self.quick < self.settings.timeout:
            with off_the_clock():
                await self._slow_turns.enter()
            try:
                result = await self._run_slowly(job)
            finally:
                self._slow_turns.leave()
        return result

    async def _run_slowly(self, job: _Job) -> ToolResult:
        """In a thread. One worker process per core: with more, each would get too little of its time to finish."""
        if self._slow_pool is None:
            self._slow_pool = _start_pool(_CORES)
        return await asyncio.to_thread(self._run, self._slow_pool, job, self.settings.timeout)

    def _run(self, pool: Monty, job: _Job, seconds: float) -> ToolResult:
        """Run once; once more if the worker dies, which may have come from outside (a signal, memory pressure)."""
        try:
            return self._run_once(pool, job, seconds)
        except MontyCrashedError as error:
            if error.timed_out:
                return ToolResult(ToolStatus.TIMEOUT, "")
        try:
            return self._run_once(pool, job, seconds)
        except MontyCrashedError as error:
            return ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": f"the sandbox died twice: {error}"})

    def _run_once(self, pool: Monty, job: _Job, seconds: float) -> ToolResult:
        limits = ResourceLimits(max_feed_duration_secs=seconds, max_memory=self.settings.max_memory_mb << 20)
        policy = OSPolicy(datetime=self._now, sleep="zero", random_start={"seed": job.seed})
        printed = CollectString(_MAX_OUTPUT)
        with pool.checkout(limits=limits, os_policy=policy) as session:
            try:
                session.feed_run(job.code, print_callback=printed)
            except MontySyntaxError as error:
                return ToolResult(ToolStatus.TOOL_ERROR, _first_line(error))
            except MontyRuntimeError as error:
                return self._failure(error, printed.output, job.many_lines)
        text = _tidy(printed.output)
        return ToolResult(ToolStatus.OK, text or NO_OUTPUT, empty=not text)

    def _failure(self, error: MontyRuntimeError, printed: str, many_lines: bool) -> ToolResult:
        """What the model sees of an exception: what was printed before it, then one line, without any measured time."""
        kind, _, message = error.display(format="type-msg").partition(": ")
        if kind == "TimeoutError" and not error.traceback():
            return ToolResult(ToolStatus.TIMEOUT, "")
        line = f"{kind}: {message}" if message else kind
        if message.startswith("memory limit exceeded"):
            flooded = message.endswith(f"> {_MAX_OUTPUT} bytes")
            what = "1 MiB printed" if flooded else f"{self.settings.max_memory_mb} MiB used"
            line = f"MemoryError: more than {what}"
        elif error.traceback() and many_lines:
            line += f" (line {error.traceback()[0].line})"
        return ToolResult(ToolStatus.TOOL_ERROR, "\n".join(filter(None, (_tidy(printed), line))))

    async def close(self) -> None:
        """End the worker processes."""
        for pool in (self._pool, self._slow_pool):
            if pool is not None:
                pool.__exit__(None, None, None)
        self._slow_pool = None


def _start_pool(processes: int) -> Monty:
    try:
        return Monty(min_processes=1, max_processes=processes).__enter__()
    except Exception as error:  # the binding reports a missing or broken worker binary in several ways
        raise ToolSetupError(
            f"tool 'python': its sandbox does not start ({type(error).__name__}: {error}); "
            "reinstall it with: pip install --force-reinstall pydantic-monty"
        ) from error


def show_last_value(code: str) -> str:
    """`code`, changed so that the value of a last expression is printed unless it is None, inside the sandbox.

    Inside, because there the limits hold: a value that is small in memory may have an endless representation. Code that
    does not parse is returned unchanged, for the sandbox to say so. The text is parsed here, never compiled or run.
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    if not body or not isinstance(body[-1], ast.Expr):
        return code
    start, end = _span(code, body[-1])
    data = code.encode()
    value = data[start:end].decode()
    return f"{data[:start].decode()}_value_ = ({value})\nif _value_ is not None:\n    print(repr(_value_))\n"


def _span(code: str, node: ast.stmt) -> tuple[int, int]:
    """Byte offsets of a statement in the encoded code."""
    starts = [0]
    for line in code.split("\n"):
        starts.append(starts[-1] + len(line.encode()) + 1)
    last_line, last_column = node.end_lineno, node.end_col_offset
    assert last_line is not None
    assert last_column is not None
    return starts[node.lineno - 1] + node.col_offset, starts[last_line - 1] + last_column


def _first_line(error: MontySyntaxError) -> str:
    lines = error.display(format="type-msg").strip().splitlines()
    return lines[0] if lines else "SyntaxError"


def _tidy(printed: str) -> str:
    return _ADDRESS.sub(">", printed).strip("\n")
