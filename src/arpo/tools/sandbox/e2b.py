"""Code run in E2B's cloud: a machine of its own for every run, through the service's own SDK.

A fresh machine per run is what keeps runs apart, and it costs what E2B asks for and its start each time. It gets no
internet access. Earlier cells run first in the same kernel.

The service's word on the code is a result; everything else (no connection, no capacity, a machine that died) raises
TransientError where asking again may help, and is INFRA_ERROR where it cannot (a wrong key).
"""

import time
from collections.abc import Callable
from typing import Any

from arpo.errors import ToolSetupError
from arpo.tools.base import TransientError
from arpo.tools.results import cap
from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus, SandboxCaps
from arpo.tools.sandbox.notebook import error_line, seeds

_START = 30.0
"""Seconds that the service has to provide a machine, and that one outlives its run if nobody ends it."""
_ALMOST = 0.95
"""Of the time limit: a time-out that comes earlier is not the code's."""


class E2BSandbox:
    """Runs code on machines of E2B's."""

    name = "e2b"
    caps = SandboxCaps(isolation="remote", files=True, network=True, processes=True, memory="total")

    def __init__(self, key: str, template: str | None = None) -> None:
        """`template`: of the machines, None for the SDK's own. Raises ToolSetupError if the SDK is not installed."""
        self._key, self._template = key, template
        self._create = _sdk()

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run it on a machine of its own. Raises TransientError where it may help to ask again."""
        try:
            machine = await self._machine(request)
            try:
                return await _run(machine, request)
            finally:
                await machine.kill()
        except TransientError:
            raise
        except Exception as error:  # the SDK has a dozen kinds of exceptions, of three libraries
            if _may_pass(error):
                raise TransientError(_said(error)) from error
            return ExecResult(status=ExecStatus.INFRA_ERROR, error=_said(error), backend=self.name)

    async def _machine(self, request: ExecRequest) -> Any:
        lives = int(request.limits.wall_s * (1 + len(request.earlier)) + _START)
        machine = await self._create(
            template=self._template,
            timeout=lives,
            allow_internet_access=False,
            api_key=self._key,
            request_timeout=_START,
        )
        for name, content in request.files.items():
            await machine.files.write(name, content)
        return machine

    async def health(self) -> str:
        """Whether 6 * 7 is 42 there."""
        try:
            result = await self.run(ExecRequest(code="6 * 7"))
        except TransientError as error:
            return f"no answer: {error}"
        if result.value == "42":
            return ""
        return f"6 * 7 gave {result.value or result.error!r}; check the key in the environment variable"

    async def close(self) -> None:
        """Nothing lives between runs."""


def _sdk() -> Callable[..., Any]:
    try:
        from e2b_code_interpreter import AsyncSandbox
    except ImportError as error:
        raise ToolSetupError(f"tool 'python': {error}; install E2B's SDK with: pip install 'arpo[e2b]'") from error
    return AsyncSandbox.create


async def _run(machine: Any, request: ExecRequest) -> ExecResult:
    """All cells share the time limit."""
    started = time.perf_counter()
    wall_s = request.limits.wall_s
    execution: Any = None
    for cell in (seeds(request), *request.earlier, request.code):
        left = wall_s - (time.perf_counter() - started)
        try:
            execution = await machine.run_code(cell, timeout=max(left, 0.001), request_timeout=_START)
        except Exception as error:
            took = time.perf_counter() - started
            if _is_timeout(error) and took >= _ALMOST * wall_s:
                return ExecResult(status=ExecStatus.TIMEOUT, wall_s=took, backend=E2BSandbox.name)
            raise
    return _result(execution, request, time.perf_counter() - started)


def _result(execution: Any, request: ExecRequest, wall_s: float) -> ExecResult:
    most = request.limits.output_bytes
    stdout, stderr = ("".join(execution.logs.stdout), "".join(execution.logs.stderr))
    status, error, value = ExecStatus.OK, "", execution.text
    if execution.error is not None:
        said = execution.error
        status = ExecStatus.OOM if said.name == "MemoryError" else ExecStatus.ERROR
        error, value = error_line(said.name, said.value, [said.traceback or ""]), None
    return ExecResult(
        status=status,
        stdout=cap(stdout, most),
        stderr=cap(stderr, most),
        error=error,
        value=None if value is None else cap(value, most),
        truncated=max(len(stdout), len(stderr)) > most,
        wall_s=wall_s,
        backend=E2BSandbox.name,
    )


def _is_timeout(error: Exception) -> bool:
    return any(kind.__name__ == "TimeoutException" for kind in type(error).__mro__)


def _may_pass(error: Exception) -> bool:
    """By what the SDK's exceptions say: a status of an overloaded service, a time-out, a broken connection."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status == 429 or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TimeoutException", "TransportError", "ConnectionError", "TimeoutError"})


def _said(error: Exception) -> str:
    return cap(f"{type(error).__name__}: {error}", 500)
