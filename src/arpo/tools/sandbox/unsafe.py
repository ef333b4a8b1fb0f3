"""Code in an ordinary process of this machine, with nothing kept apart: for those who asked for exactly that.

The process may read, write, send and kill whatever its user may. What holds are a time limit, limits of memory, CPU and
file size per process, an environment without secrets, an empty working directory that is removed afterwards, and the
end of its process group. It says so in the log when it is made, and the run card has `isolation: none`.
"""

import asyncio
import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arpo.tools.limits import Turns
from arpo.tools.results import cap
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecResult, ExecStatus, SandboxCaps

log = logging.getLogger(__name__)
_RUNNER = str(Path(__file__).with_name("unsafe_runner.py"))
_FLOOD = 16
"""Times the output that is kept, after which a run is ended."""
_TICK = 0.005
_LEFTOVERS = 1.0
"""Seconds in which what is left in the pipes is read, should a process outside the group hold them open."""


class UnsafeLocal:
    """Runs code in plain processes."""

    name = "unsafe_local"
    caps = SandboxCaps(isolation="none", files=False, network=False, processes=False, memory="process")

    def __init__(self, slots: int | None = None) -> None:
        """`slots`: runs at once, None: as many as cores."""
        self.slots = Turns(slots or os.cpu_count() or 1)
        log.warning(
            "tool 'python' runs code of the policy in plain processes of this machine (unsafe_local): it can read, "
            "change and end whatever this user can"
        )

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run it; cancelling ends its process group."""
        folder = tempfile.mkdtemp(prefix="arpo-unsafe-")
        try:
            return await _run(request, Path(folder))
        except OSError as error:
            return ExecResult(status=ExecStatus.INFRA_ERROR, error=str(error), backend=self.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def health(self) -> str:
        """Whether 6 * 7 is 42."""
        result = await self.run(ExecRequest(code="6 * 7"))
        return "" if result.value == "42" else f"6 * 7 gave {result.value or result.error!r}"

    async def close(self) -> None:
        """Every run ends with its call."""


async def _run(request: ExecRequest, folder: Path) -> ExecResult:
    work, outcome = folder / "work", folder / "outcome.json"
    work.mkdir()
    for name, content in request.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    job = {"code": request.code, "earlier": request.earlier, "seed": request.seed, "outcome": str(outcome)}
    (folder / "job.json").write_text(json.dumps(job))
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", _RUNNER, str(folder / "job.json")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=work,
        env={
            "PATH": os.defpath,
            "PYTHONHASHSEED": str(request.seed % 2**32),
            "OMP_NUM_THREADS": "1",
            "HOME": str(work),
        },
        start_new_session=True,
        preexec_fn=_limited(request.limits),
    )
    pipes = _Pipes(process, request)
    ended = await pipes.until_end()
    return _result(ended, process.returncode or 0, pipes, outcome, request, time.perf_counter() - started)


def _limited(limits: ExecLimits) -> Callable[[], None]:
    memory, files, cpu = limits.memory_mb << 20, limits.file_mb << 20, int(limits.cpu_s + 1)

    def apply() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (files, files))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return apply


class _Pipes:
    """What goes into a process and comes out of it. `kept`: per stream, head and tail of what it wrote."""

    def __init__(self, process: asyncio.subprocess.Process, request: ExecRequest) -> None:
        self.process, self.request = process, request
        self.kept = [bytearray(), bytearray()]
        self.flooded = False

    async def until_end(self) -> bool:
        """Until the process ends or floods, and its group with it. False at the time limit."""
        streams = (self.process.stdout, self.process.stderr)
        readers = (self._read(stream, kept) for stream, kept in zip(streams, self.kept, strict=True))
        tasks = [asyncio.ensure_future(one) for one in (self._write(), *readers)]
        try:
            async with asyncio.timeout(self.request.limits.wall_s):
                while self.process.returncode is None:  # `wait` would wait for whoever holds the pipes, too
                    await asyncio.sleep(_TICK)
            return True
        except TimeoutError:
            return False
        finally:
            self._end()
            await asyncio.wait(tasks, timeout=_LEFTOVERS)
            for task in tasks:
                task.cancel()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def _write(self) -> None:
        stream = self.process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stream.write(self.request.stdin)
            await stream.drain()
        stream.close()

    async def _read(self, stream: asyncio.StreamReader | None, kept: bytearray) -> None:
        assert stream is not None
        most = _FLOOD * self.request.limits.output_bytes
        while not self.flooded and (chunk := await stream.read(65536)):
            kept += chunk
            if len(kept) > most:
                self.flooded = True
                self._end()


def _result(ended: bool, code: int, pipes: _Pipes, outcome: Path, request: ExecRequest, wall_s: float) -> ExecResult:
    said = _outcome(outcome)
    status, error = _status(ended, code, pipes.flooded, said, request.limits)
    most = request.limits.output_bytes
    texts = [bytes(kept).decode(errors="replace") for kept in pipes.kept]
    value = said.get("value")
    return ExecResult(
        status=status,
        stdout=cap(texts[0], most),
        stderr=cap(texts[1], most),
        error=error,
        value=cap(value, most) if isinstance(value, str) else None,
        truncated=max(map(len, texts)) > most,
        wall_s=wall_s,
        backend=UnsafeLocal.name,
    )


def _outcome(path: Path) -> dict[str, Any]:
    """What the runner wrote last; nothing if the code ended its process first."""
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _status(ended: bool, code: int, flooded: bool, said: dict[str, Any], limits: ExecLimits) -> tuple[ExecStatus, str]:
    if flooded:
        return ExecStatus.OUTPUT_LIMIT, f"more than {_FLOOD * limits.output_bytes >> 10} KiB printed"
    if not ended or -code == signal.SIGXCPU:
        return ExecStatus.TIMEOUT, ""
    error = said.get("error")
    if error:
        return (ExecStatus.OOM if error.startswith("MemoryError") else ExecStatus.ERROR), str(error)
    if code < 0:
        return ExecStatus.ERROR, f"the process was ended by signal {-code} ({signal.Signals(-code).name})"
    return (ExecStatus.ERROR, f"the process ended with code {code}") if code else (ExecStatus.OK, "")
