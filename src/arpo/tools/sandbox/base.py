"""The sandbox contract: code in, what it printed out, and nothing else touched.

A sandbox runs each request as if on a fresh machine. What the code does, be it a crash, a flood of output or an endless
loop, is a result with a status of its own; only a failure of the sandbox itself is `infra_error`, which no model sees
and no reward knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

Isolation = Literal["namespace", "landlock", "interpreter", "remote", "none"]


class ExecStatus(StrEnum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    """The code raised, or its process ended with another code than 0 or by a signal of its own doing."""
    TIMEOUT = "timeout"
    """The wall-clock or CPU limit."""
    OOM = "oom"
    """The memory limit, of one process or of all together."""
    OUTPUT_LIMIT = "output_limit"
    """Far more output than is kept; the process was ended."""
    KILLED = "killed"
    """Ended from outside while the sandbox stands: cancelled, or by an operator."""
    INFRA_ERROR = "infra_error"
    """The sandbox failed. Never shown to a model, never a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecLimits:
    """What one run may use. Seconds; MiB; `pids`: processes and threads at once; `file_mb`: files written, in all;
    `output_bytes`: of stdout and of stderr that are kept, head and tail.
    """

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 1024
    pids: int = 64
    file_mb: int = 64
    output_bytes: int = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One run. `earlier`: cells that ran before in the same session; they are run again first, unheard, what they raise
    ignored. `files`: relative path -> content, put into the working directory. `seed`: of random, numpy and hashes.
    """

    code: str
    earlier: tuple[str, ...] = ()
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    seed: int = 0
    limits: ExecLimits = ExecLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a run gave. `stdout`, `stderr`: decoded (invalid bytes as U+FFFD), head and tail if `truncated`; `error`:
    for ERROR the exception in one line ("ZeroDivisionError: division by zero (line 3)"), else what ended the run;
    `value`: repr of a last expression, None if there is none or it is None; `files`: what was asked for; seconds, MiB.
    """

    status: ExecStatus
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    value: str | None = None
    truncated: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    backend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCaps:
    """What a sandbox keeps apart from the host. `memory`: "total" over all processes of a run, or "process"."""

    isolation: Isolation
    files: bool
    network: bool
    processes: bool
    memory: Literal["total", "process", "none"]
    packages: tuple[str, ...] = ()
    """Packages that code finds loaded."""


class Sandbox(Protocol):
    """Runs code. Safe to use from one event loop after another; many runs may be under way at once."""

    name: str
    caps: SandboxCaps

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run it; cancelling ends it. Never raises on account of the code."""
        ...

    async def health(self) -> str:
        """Empty if a trivial run gives the right answer, else what is wrong, with the remedy."""
        ...

    async def close(self) -> None:
        """End everything that runs; no process is left."""
        ...
