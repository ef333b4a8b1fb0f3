"""A sandbox of this machine: runs go to the loader process, their output is read by one thread of ours.

A thread and not the caller's event loop, because that loop may stand still for seconds (a training step) while a limit
has to be kept or a pipe emptied, and because loops come and go. The thread owns every job and the loader; callers hand
it jobs and get a future back. A loader that dies is started again, and the jobs that it had are given to the new one,
once; what is lost twice is an INFRA_ERROR.
"""

import asyncio
import base64
import json
import os
import threading
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from arpo.errors import DataError
from arpo.tools.limits import Turns
from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus, SandboxCaps
from arpo.tools.sandbox.job import Job
from arpo.tools.sandbox.pump import Pump

_TRIVIAL = ExecRequest(code="print(6 * 7)\n6 * 7")
_CANCEL_WAIT = 0.15
"""Seconds that a cancelled call waits for its run to be gone."""


class LocalSandbox:
    """A `Sandbox` on this machine. `slots`: places for runs at once, for callers to take before they call `run` (which
    itself queues only far above them), so that waiting can be kept off their clock.
    """

    def __init__(self, rung: str, preload: tuple[str, ...], slots: int, config: Mapping[str, Any]) -> None:
        """Start it; use `ladder`, which knows what this machine allows. Raises ToolSetupError."""
        self.name = rung
        self._pump = Pump(dict(config) | {"rung": rung, "preload": list(preload), "spares": min(slots, 4)})
        self.slots = Turns(slots)
        self.caps = SandboxCaps(
            isolation="namespace" if rung == "namespace" else "landlock",
            files=True,
            network=True,
            processes=rung == "namespace",
            memory="total",
            packages=preload,
        )
        self.versions: dict[str, str] = self._pump.ready["packages"]
        self.facts: dict[str, Any] = self._pump.ready["facts"]
        self.refused: tuple[str, ...] = ()
        """Why no better rung than this works here, with the remedies."""
        self._pid = os.getpid()

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Sandbox`. Raises DataError for a name in `files` that leads out of the working directory."""
        if os.getpid() != self._pid:
            return ExecResult(status=ExecStatus.INFRA_ERROR, error="a fork of the process that owns the sandbox")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ExecResult] = loop.create_future()

        def finish(result: ExecResult) -> None:
            try:
                loop.call_soon_threadsafe(_give, done, result)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        job = Job(request, _payload(request), finish)
        self._pump.submit(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            self._pump.end_job(job, ExecStatus.KILLED)
            await asyncio.wait((done,), timeout=_CANCEL_WAIT)
            raise

    async def health(self) -> str:
        """See `Sandbox`."""
        return _wrong_with(await self.run(_TRIVIAL))

    def probe(self) -> str:
        """As `health`, for callers without an event loop."""
        answers: list[ExecResult] = []
        over = threading.Event()

        def finish(result: ExecResult) -> None:
            answers.append(result)
            over.set()

        self._pump.submit(Job(_TRIVIAL, _payload(_TRIVIAL), finish))
        over.wait()
        return _wrong_with(answers[0])

    async def close(self) -> None:
        """See `Sandbox`."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """As `close`, from anywhere."""
        if os.getpid() == self._pid:
            self._pump.close()


def _give(done: "asyncio.Future[ExecResult]", result: ExecResult) -> None:
    if not done.done():
        done.set_result(result)


def _wrong_with(result: ExecResult) -> str:
    if (result.status, result.stdout, result.value) == (ExecStatus.OK, "42\n", "42"):
        return ""
    return f"a trivial run gave {result.status}: {result.error or (result.stdout, result.value)}"


def _payload(request: ExecRequest) -> bytes:
    files = {_safe(name): base64.b64encode(data).decode() for name, data in request.files.items()}
    content = {
        "code": request.code,
        "earlier": list(request.earlier),
        "seed": request.seed,
        "stdin": base64.b64encode(request.stdin).decode(),
        "files": files,
        "longest": request.limits.output_bytes,
    }
    return json.dumps(content).encode()


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise DataError(f"sandbox: file name {name!r} does not stay in the working directory; use a relative name")
    return str(path)
