"""The thread that keeps a sandbox's jobs: orders to the loader, output and clocks of runs, their ends."""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from arpo.tools.sandbox import messages
from arpo.tools.sandbox.base import ExecResult, ExecStatus
from arpo.tools.sandbox.job import DEAF, Job, in_memory
from arpo.tools.sandbox.loader import LOAD_SECONDS, LoaderProcess
from arpo.tools.sandbox.verdict import judge

_PIECE = 1 << 16
_FAR_TOO_MUCH = 16 << 20
"""Bytes of output that end a run, or 64 times what is kept if that is more."""
_LONGEST_TOLD = 8
"""Times what is kept: what is read of the result pipe."""
_MOST_RUNS = 128
_TRIES = 2
_CLOSED = "the sandbox was closed"


class Pump:
    """Owns the loader and all jobs. `ready`: the loader's first message."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Starts both. Raises ToolSetupError."""
        self._config = config
        self._loader: LoaderProcess | None = LoaderProcess(config)
        self.ready = self._loader.wait_ready()
        self._serving = True
        self._loading_until = 0.0
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        self._orders: deque[Callable[[], None]] = deque()
        self._count = 0
        self._bell, self._rung = socket.socketpair()
        self._bell.setblocking(False)
        self._rung.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._rung, selectors.EVENT_READ, self._woken)
        self._selector.register(self._loader.control, selectors.EVENT_READ, self._hear)
        self._closing = self._over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._live, name="arpo-sandbox", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """From any thread. After `close` the job is finished at once."""
        if not self._order(lambda: self._take(job)):
            self._give(job, ExecResult(status=ExecStatus.INFRA_ERROR, error=_CLOSED, backend=self._config["rung"]))

    def end_job(self, job: Job, why: ExecStatus) -> None:
        """From any thread."""
        self._order(lambda: self._end(job, why))

    def close(self) -> None:
        """End all; returns when the loader and everything that it started are gone."""
        self._order(self._stop)
        self._thread.join()

    def _order(self, action: Callable[[], None]) -> bool:
        """Have the thread do it. False if it has ended."""
        with self._lock:
            if self._over:
                return False
            self._orders.append(action)
            with contextlib.suppress(BlockingIOError):
                self._bell.send(b"x")
            return True

    def _stop(self) -> None:
        self._closing = True

    def _live(self) -> None:
        try:
            while not self._closing:
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._keep_time()
        finally:  # whatever happens, nobody waits for ever
            self._closing = True
            self._wind_up()

    def _patience(self) -> float | None:
        times = [job.deadline for job in self._running.values()]
        if self._loader is not None and not self._serving:
            times.append(self._loading_until)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._rung.recv(4096)
        while self._orders:
            self._orders.popleft()()

    def _take(self, job: Job) -> None:
        self._waiting.append(job)
        if self._loader is None and not self._closing:
            try:
                self._start_loader()
            except OSError as error:
                self._fail_all(f"the loader cannot be started again: {error}")
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._serving and len(self._running) < _MOST_RUNS:
            job = self._waiting.popleft()
            try:
                self._start(job)
            except OSError as error:
                self._lost(job, f"the run could not be started: {error}")

    def _start(self, job: Job) -> None:
        assert self._loader is not None
        self._count += 1
        job.number, job.tries = self._count, job.tries + 1
        job.begin()
        theirs = []
        try:
            theirs.append(in_memory(job.payload))
            for index in range(3):
                ours, end = os.pipe2(os.O_CLOEXEC)
                theirs.append(end)
                os.set_blocking(ours, False)
                job.pipes[ours] = index
                self._selector.register(ours, selectors.EVENT_READ, lambda ours=ours: self._read(job, ours))
            self._running[job.number] = job
            messages.send(self._loader.control, {"run": job.number, **asdict(job.request.limits)}, theirs)
        except OSError:
            self._forget(job)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _read(self, job: Job, pipe: int) -> None:
        if pipe not in job.pipes:
            return  # closed by what came before it at the same moment
        try:
            data = os.read(pipe, _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(job, pipe)
            return
        kept = job.request.limits.output_bytes
        index = job.pipes[pipe]
        if index < 2:
            job.outputs[index].add(data)
            if job.outputs[index].total > max(_FAR_TOO_MUCH, 64 * kept):
                self._end(job, ExecStatus.OUTPUT_LIMIT)
        elif len(job.told) < _LONGEST_TOLD * kept + _PIECE:
            job.told += data
        else:
            self._end(job, ExecStatus.OUTPUT_LIMIT)

    def _close_pipe(self, job: Job, pipe: int) -> None:
        self._selector.unregister(pipe)
        del job.pipes[pipe]
        os.close(pipe)

    def _end(self, job: Job, why: ExecStatus) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
            self._give(job, ExecResult(status=why, error="ended before it began", backend=self._config["rung"]))
        elif job.number in self._running and job.ended_by is None:
            job.ended_by = why
            job.deadline = time.monotonic() + DEAF
            self._tell({"kill": job.number})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._loader is None:
            return
        with contextlib.suppress(OSError):  # it is gone: its socket says so too
            messages.send(self._loader.control, message)

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self._loader is not None and not self._serving and now >= self._loading_until:
            self._drop_loader()
            self._fail_all(f"the packages were not loaded within {LOAD_SECONDS:.0f} s")
            return
        for job in [job for job in self._running.values() if job.deadline <= now]:
            if job.started is not None and job.ended_by is None:
                self._end(job, ExecStatus.TIMEOUT)
            else:
                self._loader_lost("the loader does not answer")
                return

    def _hear(self) -> None:
        assert self._loader is not None
        try:
            received = messages.receive(self._loader.control)
        except OSError:
            received = None
        if received is None:
            self._loader_lost("the loader ended")
            return
        message = received[0]
        if "started" in message:
            job = self._running.get(message["started"])
            if job is not None and job.ended_by is None:
                job.started = time.monotonic()
                job.deadline = job.started + job.request.limits.wall_s
        elif "gone" in message:
            job = self._running.get(message["gone"])
            if job is not None:
                self._gone(job, message)
        elif "ready" in message:
            self._serving = True
            self._start_waiting()
        elif "failed" in message:
            self._fail_all(message["failed"])

    def _gone(self, job: Job, message: dict[str, Any]) -> None:
        for pipe in list(job.pipes):
            while pipe in job.pipes and (total := self._heard(job)) >= 0:
                self._read(job, pipe)
                if self._heard(job) == total:
                    break
        verdict = judge(job.ended_by, message, bytes(job.told), job.request.limits)
        self._forget(job)
        if verdict.status is ExecStatus.INFRA_ERROR:
            self._lost(job, verdict.error)
            return
        self._give(job, job.result(verdict, message, self._config["rung"]))
        self._start_waiting()

    def _heard(self, job: Job) -> int:
        return sum(output.total for output in job.outputs) + len(job.told)

    def _forget(self, job: Job) -> None:
        self._running.pop(job.number, None)
        for pipe in list(job.pipes):
            self._close_pipe(job, pipe)

    def _lost(self, job: Job, why: str) -> None:
        """By no fault of its own: once more, then it is told."""
        if job.ended_by is None and job.tries < _TRIES and not self._closing:
            self._take(job)
            return
        status = job.ended_by or ExecStatus.INFRA_ERROR
        self._give(job, ExecResult(status=status, error=why, backend=self._config["rung"]))

    def _give(self, job: Job, result: ExecResult) -> None:
        if not job.over:
            job.over = True
            job.finish(result)

    def _loader_lost(self, why: str) -> None:
        """A new one is started for the runs that it had, or for the next that comes; they wait while it loads."""
        lost = list(self._running.values())
        for job in lost:
            self._forget(job)
        self._drop_loader()
        for job in lost:
            self._lost(job, why)

    def _start_loader(self) -> None:
        self._serving = False
        self._loading_until = time.monotonic() + LOAD_SECONDS
        self._loader = LoaderProcess(self._config)
        self._selector.register(self._loader.control, selectors.EVENT_READ, self._hear)

    def _drop_loader(self) -> None:
        if self._loader is not None:
            self._serving = False
            self._selector.unregister(self._loader.control)
            self._loader.end()
            self._loader = None

    def _fail_all(self, why: str) -> None:
        for job in [*self._running.values(), *self._waiting]:
            self._forget(job)
            self._give(job, ExecResult(status=ExecStatus.INFRA_ERROR, error=why, backend=self._config["rung"]))
        self._waiting.clear()

    def _wind_up(self) -> None:
        with self._lock:
            self._over = True
        self._drop_loader()
        while self._orders:
            self._orders.popleft()()
        self._fail_all(_CLOSED)
        self._selector.close()
        self._bell.close()
        self._rung.close()
