"""What a run says about its Python tool."""

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from arpo.tools.limited import LimitedSettings
from arpo.tools.sandbox.base import ExecLimits, Isolation

Backend = Literal["auto", "namespace", "landlock", "monty", "fusion", "e2b", "unsafe_local"]
PRELOAD = ("numpy", "sympy", "scipy", "pandas")
_MEMORY_MB = 1024
_MONTY_MEMORY_MB = 64


class PythonSettings(LimitedSettings):
    """Python for the policy. `timeout`, in seconds, is of one run of code, its repeated earlier cells included.

    By default code runs in this machine's strongest sandbox ("auto": namespaces, or Landlock where they are blocked),
    and where neither works the run does not start. "monty" is an interpreter of a subset of Python, without packages,
    a hundred times as fast; "fusion" and "e2b" are services; "unsafe_local" keeps nothing apart from anything.
    """

    type: Literal["python"] = "python"
    timeout: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    backend: Backend = "auto"
    fallback: Literal["monty"] | None = None
    """What to take where "auto" finds no sandbox; the log and the run card say so. None: the run does not start."""
    preload: tuple[str, ...] = PRELOAD
    """Packages that code finds loaded; of "auto", "namespace" and "landlock"."""
    persistent: bool = False
    """Whether a trajectory's cells build on each other, as in a notebook. Before each new one they are run again."""
    memory_mb: int | None = Field(default=None, ge=2)
    """MiB that all processes of a run may use together. None: 1024; 64 in monty."""
    cpu_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """CPU seconds of a run. None: as many as `timeout`."""
    pids: int = Field(default=64, ge=1)
    """Processes and threads of a run at once."""
    file_mb: int = Field(default=64, ge=1)
    """MiB of files that a run may write, in all."""
    output_bytes: int = Field(default=65536, ge=1024)
    """Bytes of stdout, and of stderr, that are kept of a run: head and tail."""
    parallel: int | None = Field(default=None, ge=1)
    """Runs at once in a sandbox on this machine; the others wait, which their time limit does not count. None: as many
    as CPU cores."""
    url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Of the SandboxFusion service, like "http://127.0.0.1:8080"; of "fusion" alone."""
    key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*$")
    """Environment variable that holds the service's key. None: E2B_API_KEY for "e2b", no key for "fusion"."""
    now: datetime = datetime(2026, 1, 1)
    """What the clock shows in monty, the same in every run."""

    @model_validator(mode="after")
    def _fits(self) -> "PythonSettings":
        if (self.url is not None) != (self.backend == "fusion"):
            raise ValueError(
                'url and backend = "fusion" belong together: give both, like url = "http://127.0.0.1:8080"'
            )
        if self.fallback is not None and self.backend != "auto":
            raise ValueError(f'fallback belongs to backend = "auto", not to {self.backend!r}; remove it')
        return self

    def limits(self, isolation: Isolation) -> ExecLimits:
        """Of one run in a sandbox of that kind, which may be another one than was asked for."""
        memory_mb = _MONTY_MEMORY_MB if isolation == "interpreter" else _MEMORY_MB
        return ExecLimits(
            wall_s=self.timeout,
            cpu_s=self.timeout if self.cpu_s is None else self.cpu_s,
            memory_mb=memory_mb if self.memory_mb is None else self.memory_mb,
            pids=self.pids,
            file_mb=self.file_mb,
            output_bytes=self.output_bytes,
        )
