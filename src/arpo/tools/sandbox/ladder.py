"""Which sandbox this machine allows: tried once, by running code in it, best first.

`choose` starts one; `shared` counts users of one per process and configuration, so that several tool boxes and tests
share one loaded process and the last to leave ends it.
"""

import asyncio
import atexit
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any, Literal

from arpo.errors import ToolSetupError
from arpo.tools.sandbox import scratch
from arpo.tools.sandbox.base import ExecRequest, ExecResult
from arpo.tools.sandbox.launcher import LocalSandbox
from arpo.tools.sandbox.loader import RungError
from arpo.tools.sandbox.remedies import lines
from arpo.tools.sandbox.syscalls import supported

Backend = Literal["auto", "namespace", "landlock"]
PRELOAD = ("numpy", "sympy", "scipy", "pandas")
RUNGS = ("namespace", "landlock")
CONTAINS = {
    "namespace": "files, network, processes, memory in all; own kernel namespaces",
    "landlock": "files, network, signals, memory in all; names of files can be found out",
}
"""What each rung keeps apart from the machine, in a line for the doctor."""
_ELSE = "Or set another `backend` of the tool: monty (no packages), fusion, e2b"
NOBODY = 65534
"""The user and group that a sandbox started by root runs as."""


def choose(backend: Backend = "auto", preload: tuple[str, ...] = PRELOAD, *, slots: int | None = None) -> LocalSandbox:
    """Start a sandbox of its own. `slots`: runs at once, None: as many as cores.

    Raises ToolSetupError, with what is blocked and the command that allows it, if the kernel allows none that
    `backend` admits, or if a package of `preload` is missing.
    """
    if sys.platform != "linux" or not supported():
        raise ToolSetupError(
            "tool 'python': its sandbox needs Linux on x86_64 or aarch64; "
            'set backend = "monty" (pip install pydantic-monty), "fusion" or "e2b"'
        )
    scratch.clear_stale(tempfile.gettempdir(), {os.geteuid(), NOBODY} if os.geteuid() == 0 else {os.geteuid()})
    reasons = []
    for rung in RUNGS if backend == "auto" else (backend,):
        try:
            sandbox = _tried(rung, preload, slots or len(os.sched_getaffinity(0)))
        except RungError as error:
            reasons.append(f"{rung}: {error}; to allow it: {' or '.join(lines(rung))}")
        else:
            sandbox.refused = tuple(reasons)
            return sandbox
    raise ToolSetupError(f"tool 'python': no sandbox works here. {'. '.join(reasons)}. {_ELSE}")


def _tried(rung: str, preload: tuple[str, ...], slots: int) -> LocalSandbox:
    """Start it and run something in it. Raises RungError if the machine forbids it, else ToolSetupError."""
    config = {"uid": NOBODY, "gid": NOBODY, "scratch": tempfile.gettempdir()}
    sandbox = LocalSandbox(rung, preload, slots, config)
    wrong = sandbox.probe()
    if wrong:
        sandbox.end()
        raise RungError(wrong)
    return sandbox


@dataclass(eq=False, slots=True)
class _Shared:
    sandbox: LocalSandbox
    users: int = 0


_OPEN: dict[tuple[Any, ...], _Shared] = {}
_LOCK = threading.Lock()


class SharedSandbox:
    """One user's hold on a sandbox that others use too; `close` lets go of it."""

    def __init__(self, key: tuple[Any, ...], shared: _Shared) -> None:
        self._key = key
        self._shared: _Shared | None = shared
        self._sandbox = shared.sandbox
        self.name = self._sandbox.name
        self.caps = self._sandbox.caps
        self.slots = self._sandbox.slots
        self.facts = self._sandbox.facts
        self.versions = self._sandbox.versions

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Sandbox`."""
        return await self._sandbox.run(request)

    async def health(self) -> str:
        """See `Sandbox`."""
        return await self._sandbox.health()

    async def close(self) -> None:
        """See `Sandbox`; what others run goes on."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """As `close`, from anywhere."""
        with _LOCK:
            shared, self._shared = self._shared, None
            if shared is None:
                return
            shared.users -= 1
            if shared.users == 0 and _OPEN.get(self._key) is shared:
                del _OPEN[self._key]
                shared.sandbox.end()


def shared(backend: Backend = "auto", preload: tuple[str, ...] = PRELOAD, *, slots: int | None = None) -> SharedSandbox:
    """A sandbox that is shared by all who ask for the same one; the last to close it ends it. Raises as `choose`."""
    key = (os.getpid(), backend, preload, slots)
    with _LOCK:
        if key not in _OPEN:
            _OPEN[key] = _Shared(choose(backend, preload, slots=slots))
        _OPEN[key].users += 1
        return SharedSandbox(key, _OPEN[key])


@atexit.register
def _end_all() -> None:
    for key, one in list(_OPEN.items()):
        if key[0] == os.getpid():
            one.sandbox.end()
