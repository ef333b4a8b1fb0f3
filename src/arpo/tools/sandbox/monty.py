"""Python without files, network or packages: an interpreter of a subset of it, for runs that compute.

pydantic-monty interprets in worker processes: a run costs a fraction of a millisecond, a crash costs a worker and
nothing else. Each run gets a fresh session, so runs share no state and the branches of a tree cannot touch each other.
Clock, sleep and random numbers are fixed, so that a run is a function of its code and seed; that also lets a run that
outlives the quick limit be run again from the start in a thread, instead of holding up the event loop in which
everything else (and in a fixed order) happens.

Of the limits of a request, time and memory count; there are no processes or files, and output ends a run at 1 MiB. The
value of a last expression is printed with the rest (`ExecResult.stdout`).
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic_monty import (
    CollectString,
    Monty,
    MontyCrashedError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    OSPolicy,
    ResourceLimits,
)

from arpo.errors import ToolSetupError
from arpo.tools.limits import Turns
from arpo.tools.running import off_the_clock
from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus, SandboxCaps
from arpo.tools.sandbox.values import show_last_value

_CORES = min(os.cpu_count() or 1, 24)
_MAX_OUTPUT = (1 << 20) - 1
"""Bytes of print output that are collected; odd, so that its overflow differs from every memory limit."""
NOW = datetime(2026, 1, 1)


@dataclass(frozen=True, slots=True)
class _Job:
    """One piece of code to run, after others. `many_lines`: an error message then says in which line."""

    code: str
    earlier: tuple[str, ...]
    seed: int
    memory_mb: int
    many_lines: bool


class MontySandbox:
    """Runs code in worker processes of pydantic-monty."""

    name = "monty"
    caps = SandboxCaps(isolation="interpreter", files=True, network=True, processes=True, memory="total")

    def __init__(self, *, now: datetime = NOW, quick: float = 0.05) -> None:
        """`now`: what the clock shows; `quick`: seconds that a run may take in the calling thread before it is run
        again in another one. Raises ToolSetupError if the sandbox does not start.
        """
        self.quick = quick
        self._now: datetime = now if now.tzinfo else now.replace(tzinfo=UTC)
        self._pool = _start_pool(1)
        self._slow_pool: Monty | None = None
        self._slow_turns = Turns(_CORES)

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run `request.code`; random numbers start from `request.seed`."""
        code, wall_s = request.code, request.limits.wall_s
        many_lines = "\n" in code.strip()
        job = _Job(show_last_value(code), request.earlier, request.seed, request.limits.memory_mb, many_lines)
        quick = min(self.quick, wall_s)
        result = self._run(self._pool, job, quick)
        if result.status is ExecStatus.TIMEOUT and quick < wall_s:
            with off_the_clock():
                await self._slow_turns.enter()
            try:
                result = await self._run_slowly(job, wall_s)
            finally:
                self._slow_turns.leave()
        return result

    async def _run_slowly(self, job: _Job, seconds: float) -> ExecResult:
        """In a thread. One worker process per core: with more, each would get too little of its time to finish."""
        if self._slow_pool is None:
            self._slow_pool = _start_pool(_CORES)
        return await asyncio.to_thread(self._run, self._slow_pool, job, seconds)

    def _run(self, pool: Monty, job: _Job, seconds: float) -> ExecResult:
        """Run once; once more if the worker dies, which may have come from outside (a signal, memory pressure)."""
        try:
            return self._run_once(pool, job, seconds)
        except MontyCrashedError as error:
            if error.timed_out:
                return _result(ExecStatus.TIMEOUT)
        try:
            return self._run_once(pool, job, seconds)
        except MontyCrashedError as error:
            return _result(ExecStatus.INFRA_ERROR, error=f"the sandbox died twice: {error}")

    def _run_once(self, pool: Monty, job: _Job, seconds: float) -> ExecResult:
        limits = ResourceLimits(max_feed_duration_secs=seconds, max_memory=job.memory_mb << 20)
        policy = OSPolicy(datetime=self._now, sleep="zero", random_start={"seed": job.seed})
        printed = CollectString(_MAX_OUTPUT)
        with pool.checkout(limits=limits, os_policy=policy) as session:
            _run_earlier(session, job.earlier)
            try:
                session.feed_run(job.code, print_callback=printed)
            except MontySyntaxError as error:
                return _result(ExecStatus.ERROR, error=_first_line(error))
            except MontyRuntimeError as error:
                return _failure(error, printed.output, job)
        return _result(ExecStatus.OK, printed.output)

    async def health(self) -> str:
        """Whether 6 * 7 is 42."""
        result = await self.run(ExecRequest(code="6 * 7"))
        if result.stdout.strip() == "42":
            return ""
        return f"6 * 7 gave {result.stdout or result.error!r}; pip install --force-reinstall pydantic-monty"

    async def close(self) -> None:
        """End the worker processes."""
        for pool in (self._pool, self._slow_pool):
            if pool is not None:
                pool.__exit__(None, None, None)
        self._slow_pool = None


def _result(status: ExecStatus, stdout: str = "", error: str = "") -> ExecResult:
    return ExecResult(status=status, stdout=stdout, error=error, backend=MontySandbox.name)


def _run_earlier(session: MontySession, cells: tuple[str, ...]) -> None:
    """What they print, and whether they fail, was told when they were new."""
    for cell in cells:
        with contextlib.suppress(MontySyntaxError, MontyRuntimeError):
            session.feed_run(cell, print_callback=CollectString(_MAX_OUTPUT))


def _failure(error: MontyRuntimeError, printed: str, job: _Job) -> ExecResult:
    """An exception in one line, without any measured time; a limit of the sandbox has no traceback."""
    kind, _, message = error.display(format="type-msg").partition(": ")
    if kind == "TimeoutError" and not error.traceback():
        return _result(ExecStatus.TIMEOUT, printed)
    if message.startswith("memory limit exceeded"):
        if message.endswith(f"> {_MAX_OUTPUT} bytes"):
            return _result(ExecStatus.OUTPUT_LIMIT, printed, "MemoryError: more than 1 MiB printed")
        return _result(ExecStatus.OOM, printed, f"MemoryError: more than {job.memory_mb} MiB used")
    line = f"{kind}: {message}" if message else kind
    if error.traceback() and job.many_lines:
        line += f" (line {error.traceback()[0].line})"
    return _result(ExecStatus.ERROR, printed, line)


def _start_pool(processes: int) -> Monty:
    try:
        return Monty(min_processes=1, max_processes=processes).__enter__()
    except Exception as error:  # the binding reports a missing or broken worker binary in several ways
        raise ToolSetupError(
            f"tool 'python': its sandbox does not start ({type(error).__name__}: {error}); "
            "reinstall it with: pip install --force-reinstall pydantic-monty"
        ) from error


def _first_line(error: MontySyntaxError) -> str:
    lines = error.display(format="type-msg").strip().splitlines()
    return lines[0] if lines else "SyntaxError"
