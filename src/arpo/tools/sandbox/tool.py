"""The Python tool: code of the policy in, run in a sandbox, what a notebook would show out.

Every call starts afresh, so that branches of a tree cannot touch each other and equal calls give equal results; with
`persistent` a call first runs the trajectory's earlier cells again, all from the seed of the first, so that what the
model was shown of them stays true, in every branch.

The sandbox is the judge of a run's time, because it alone can tell code that is slow from a service that hangs: the
one is told to the model, the other is a failure that no model sees. So near the end of its time a call leaves the tool
box's clock and waits for the sandbox's verdict; one that does not come is a failure of the sandbox.
"""

import asyncio
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from arpo.tools.base import ToolContext, ToolResult, ToolStatus, TransientError
from arpo.tools.limits import Turns
from arpo.tools.running import off_the_clock
from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus, Sandbox
from arpo.tools.sandbox.settings import PythonSettings
from arpo.tools.sessions import Fork

NO_OUTPUT = "(no output)"
_ON_THE_CLOCK = 0.9
"""Of a run's time limit: from there on its sandbox's word is waited for."""
_VERDICT = 30.0
"""Seconds after the time limit in which the sandbox has to say something."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


class PythonTool:
    """Runs code; the result is what it printed, and the value of a last expression as a notebook shows it.

    With `persistent` the tool is its own `environment`: the log of its calls is all the state there is.
    """

    name = "python"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the code to run", "minLength": 1}},
        "required": ["code"],
        "additionalProperties": False,
    }
    stateless = True
    idempotent = True
    fork: Fork = "replay"

    def __init__(self, sandbox: Sandbox, settings: PythonSettings | None = None) -> None:
        """`sandbox` is closed with the tool."""
        self.sandbox = sandbox
        self.settings = settings or PythonSettings()
        self.limits = self.settings.limits(sandbox.caps.isolation)
        self.stateless = not self.settings.persistent
        self.environment = self if self.settings.persistent else None
        self.description = _description(self.settings.persistent)
        self._in_process = sandbox.caps.isolation == "interpreter"
        self._slots: Turns | None = getattr(sandbox, "slots", None)

    def facts(self) -> dict[str, Any]:
        """For the run card: what was asked for, what code runs in, and what that keeps apart from this machine."""
        caps = asdict(self.sandbox.caps) | {"packages": list(self.sandbox.caps.packages)}
        asked = {"asked_for": self.settings.backend, "backend": self.sandbox.name}
        more = {"versions": dict(getattr(self.sandbox, "versions", {})), "python": platform.python_version()}
        return {**asked, **caps, **more, "persistent": self.settings.persistent, "limits": asdict(self.limits)}

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run `arguments["code"]`; random numbers start from the context's seed. Raises TransientError."""
        result = await self._run(self._request(arguments["code"], context))
        return _shown(result)

    def _request(self, code: str, context: ToolContext) -> ExecRequest:
        steps = context.session.steps(self.name) if self.environment and context.session else []
        return ExecRequest(
            code=code,
            earlier=tuple(step.arguments["code"] for step in steps),
            seed=steps[0].seed if steps else context.seed,
            limits=self.limits,
        )

    async def _run(self, request: ExecRequest) -> ExecResult:
        if self._in_process:  # it answers before anything else happens, and has queues of its own
            return await self.sandbox.run(request)
        if self._slots is None:
            return await self._judged(request)
        with off_the_clock():
            await self._slots.enter()
        try:
            return await self._judged(request)
        finally:
            self._slots.leave()

    async def _judged(self, request: ExecRequest) -> ExecResult:
        return await _verdict(asyncio.ensure_future(self.sandbox.run(request)), request.limits.wall_s)

    async def start(self, context: ToolContext) -> None:
        """Of an environment: nothing lives between the calls."""

    async def step(self, state: None, tool: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Of an environment: as `call`."""
        return await self.call(arguments, context)

    def copy(self, state: None) -> None:
        """Of an environment."""

    async def end(self, state: None) -> None:
        """Of an environment."""

    async def close(self) -> None:
        """End everything that runs."""
        await self.sandbox.close()


async def _verdict(run: "asyncio.Future[ExecResult]", wall_s: float) -> ExecResult:
    """What the sandbox says of the run; cancelling ends the run."""
    try:
        await asyncio.wait((run,), timeout=_ON_THE_CLOCK * wall_s)
        if not run.done():
            with off_the_clock():
                await asyncio.wait((run,), timeout=(1 - _ON_THE_CLOCK) * wall_s + _VERDICT)
        if run.done():
            return run.result()
    finally:
        if not run.done():
            run.cancel()
            await asyncio.wait((run,))
    raise TransientError(f"the sandbox says nothing {_VERDICT:g} s after the time limit of a run")


def _shown(result: ExecResult) -> ToolResult:
    """What the model sees; nothing where the sandbox failed."""
    if result.status in (ExecStatus.INFRA_ERROR, ExecStatus.KILLED):
        error = f"sandbox {result.backend}: {result.error or result.status.value}"
        return ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": error})
    if result.status is ExecStatus.TIMEOUT:
        return ToolResult(ToolStatus.TIMEOUT, "")
    last = result.value if result.status is ExecStatus.OK else _why(result)
    text = "\n".join(filter(None, map(_tidy, (result.stdout, result.stderr, last or ""))))
    if result.status is ExecStatus.OK:
        return ToolResult(ToolStatus.OK, text or NO_OUTPUT, empty=not text)
    return ToolResult(ToolStatus.TOOL_ERROR, text)


_ENDED_BY = {
    ExecStatus.ERROR: "the process ended with an error",
    ExecStatus.OOM: "MemoryError: more memory used than allowed",
    ExecStatus.OUTPUT_LIMIT: "MemoryError: more printed than allowed",
}


def _why(result: ExecResult) -> str:
    return result.error or _ENDED_BY[result.status]


def _tidy(printed: str) -> str:
    """Without addresses in memory, which differ from run to run."""
    return _ADDRESS.sub(">", printed).strip("\n")


def _description(persistent: bool) -> str:
    state = "variables stay for the next call" if persistent else "each call starts afresh"
    return f"runs Python code and returns what it prints; {state}"
