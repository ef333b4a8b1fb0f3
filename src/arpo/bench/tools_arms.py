"""Ways to run a policy's code, side by side: our sandboxes, a fresh interpreter, bubblewrap around one.

All run the same code, which uses numpy and sympy, and have to give the same answer; monty, which has no packages, runs
what it can. The fresh interpreters get the environment of the sandboxes, so that none starts threads it does not need.
"""

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from typing import Protocol

from arpo.errors import ArpoError, ToolSetupError
from arpo.tools.sandbox import ladder
from arpo.tools.sandbox.base import ExecRequest, ExecStatus, Sandbox

CODE = "import numpy, sympy\nprint(int(numpy.arange(10).sum()), sympy.Integer(6) * 7)"
SIMPLE = "print(sum(range(10)), 6 * 7)"
ANSWER = "45 42\n"
ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

_RUNGS: dict[str, ladder.Backend] = {"namespace": "namespace", "landlock": "landlock"}


class Arm(Protocol):
    """One way. `slow`: a call takes the better part of a second. `isolation`: in a word, what it keeps apart."""

    name: str
    slow: bool
    isolation: str

    async def call(self) -> float | None:
        """Run the code once; CPU seconds of its processes, None if not known. Raises ArpoError for a wrong answer."""
        ...

    def close(self) -> None: ...


class SandboxArm:
    """One of our sandboxes."""

    slow = False

    def __init__(self, name: str, sandbox: Sandbox, code: str | None = None) -> None:
        """`code`: None for the common one."""
        self.name, self.sandbox, self.code = name, sandbox, code or CODE
        self.isolation = str(sandbox.caps.isolation)

    async def call(self) -> float | None:
        """One run."""
        result = await self.sandbox.run(ExecRequest(code=self.code))
        if (result.status, result.stdout) != (ExecStatus.OK, ANSWER):
            raise ArpoError(f"{self.name}: a run gave {result}")
        return result.cpu_s or None

    def close(self) -> None:
        """End the sandbox."""
        asyncio.run(self.sandbox.close())


class ProcessArm:
    """A fresh interpreter per call, behind `prefix` if there is one."""

    slow = True

    def __init__(self, name: str, isolation: str, prefix: Sequence[str] = ()) -> None:
        self.name, self.isolation, self.prefix = name, isolation, tuple(prefix)

    async def call(self) -> float | None:
        """Start it, wait for its end."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = await asyncio.create_subprocess_exec(
            *(*self.prefix, sys.executable, "-c", CODE),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        out, err = await process.communicate()
        if out.decode() != ANSWER:
            raise ArpoError(f"{self.name}: a run gave {out[-200:]!r}, {err[-500:]!r}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def close(self) -> None:
        """Every process ended with its call."""


def baseline() -> ProcessArm:
    """What everything is compared with."""
    return ProcessArm("subprocess", "none")


def opened(name: str) -> Arm:
    """An arm by name. Raises ToolSetupError where this machine does not have it."""
    if name in _RUNGS:
        return SandboxArm(name, ladder.choose(_RUNGS[name]))
    if name == "monty":
        return _monty()
    return _bubblewrap()


def _monty() -> Arm:
    try:
        from arpo.tools.sandbox.monty import MontySandbox
    except ImportError as error:
        raise ToolSetupError(f"{error}: pip install pydantic-monty") from error
    return SandboxArm("monty (no packages)", MontySandbox(), SIMPLE)


def _bubblewrap() -> Arm:
    program = shutil.which("bwrap")
    if program is None:
        raise ToolSetupError("not installed")
    flags = ["--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--tmpfs", "/tmp"]
    return ProcessArm("bwrap", "namespace", [program, *flags, "--proc", "/proc", "--dev", "/dev"])
