"""Which sandbox this machine allows: tried once, by running code in it, best first.

`choose` starts one; `shared` counts users of one per process and configuration, so that several tool boxes and tests
share one loaded process and the last to leave ends it.
"""

from typing import Literal

from arpo.errors import ToolSetupError
from arpo.tools.limits import Turns
from arpo.tools.sandbox.base import ExecRequest, ExecResult, SandboxCaps

Backend = Literal["auto", "namespace", "landlock"]
PRELOAD = ("numpy", "sympy", "scipy", "pandas")


class LocalSandbox:
    """A `Sandbox` on this machine. `slots`: places for runs at once, for callers to take before they call `run` (which
    itself does not queue below a hard cap), so that waiting can be kept off their clock.
    """

    name: str
    caps: SandboxCaps
    slots: Turns

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Sandbox`."""
        raise NotImplementedError

    async def health(self) -> str:
        """See `Sandbox`."""
        raise NotImplementedError

    async def close(self) -> None:
        """See `Sandbox`."""
        raise NotImplementedError


def choose(backend: Backend = "auto", preload: tuple[str, ...] = PRELOAD, *, slots: int | None = None) -> LocalSandbox:
    """Start a sandbox of its own. `slots`: runs at once, None: as many as cores.

    Raises ToolSetupError, with what is blocked and the command that allows it, if the kernel allows none that
    `backend` admits, or if a package of `preload` is missing.
    """
    raise ToolSetupError(f"sandbox {backend!r}: the launcher is not in this build")


def shared(backend: Backend = "auto", preload: tuple[str, ...] = PRELOAD, *, slots: int | None = None) -> LocalSandbox:
    """A sandbox that is shared by all who ask for the same one; the last to close it ends it. Raises as `choose`."""
    return choose(backend, preload, slots=slots)
