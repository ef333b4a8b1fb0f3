"""A run's processes: its first one, which watches and clears up, and the one in which the code runs.

Both are copies of the loader made before there is a request, so that the wait for namespaces and mounts is over when
one comes. The code's process reads the request, takes its limits upon it, gives up every right and descriptor, and only
then looks at the code. The first process never runs any: it reaps orphans, ends the run when all processes together
use more than they may, and when the code's process has ended, ends the others, says how it went, and ends itself; in a
process namespace that takes along whatever is left.
"""

import atexit
import binascii
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from arpo.tools.sandbox import cell, messages, native, seccomp
from arpo.tools.sandbox.watch import Tree, Usage

POLL = 0.05
"""Seconds between two looks at what a run uses."""
_OVERTIME = 2.0
"""Seconds after the wall limit at which the first process ends a run that nobody ended."""
_RESULT_FD = 3
_NICE = 5
"""So that whoever watches a fork bomb gets to look at it."""


def fresh_signals() -> None:
    """As a new process has them; nothing of the loader's handlers."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python does: an exception instead
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def only_descriptors(*kept: int) -> None:
    """Close all others."""
    start = 0
    for number in sorted(set(kept)):
        if start < number:  # an empty range closes everything (CPython before 3.12)
            os.closerange(start, number)
        start = number + 1
    os.closerange(start, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024))


def code_process(orders: socket.socket, confine: Callable[[dict[str, Any]], tuple[bytes, str]]) -> None:
    """Wait for a request, run it, end. `confine`: what the rung does to this process; gives the filter of system calls
    that is to be installed, and the folder to work in.
    """
    received = messages.receive(orders)
    if received is None:
        os._exit(0)
    limits, descriptors = received
    os.setsid()  # which the filter denies to all that comes from here: one session, one share of the cores, one end
    os.nice(_NICE)
    payload, out, err, result = descriptors
    with open(payload, "rb") as file:
        request = json.load(file)
    filter_, folder = confine(limits)
    only = [_stdin(request["stdin"]), out, err, result]
    for place, descriptor in enumerate([os.dup(number) for number in only]):
        os.dup2(descriptor, place)
    only_descriptors(0, 1, 2, _RESULT_FD)
    os.chdir(folder)
    _write_files(request["files"])
    native.drop_capabilities()
    native.prctl(native.PR_SET_DUMPABLE, 1)
    seccomp.install(filter_)
    os._exit(_run(request))


def _run(request: dict[str, Any]) -> int:
    atexit._clear()
    sys.argv = [""]
    sys.path.insert(0, "")
    for name in [name for name in sys.modules if name == "arpo" or name.startswith("arpo.")]:
        del sys.modules[name]
    gc.enable()
    return cell.run(request, _tell)


def _tell(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_RESULT_FD, view) :]


def _stdin(text: str) -> int:
    """A descriptor that gives the request's input. It lives in memory, sealed, and holds no more than that."""
    descriptor = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(binascii.a2b_base64(text))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write_files(files: dict[str, str]) -> None:
    for name, content in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(binascii.a2b_base64(content))


def end_group(pid: int) -> None:
    """End the code's process and all that came from it, at once: none of them can leave its process group."""
    for end in (os.killpg, os.kill):  # it may not lead a group yet
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)


class First:
    """The first process of a run, once it has made the code's process `pid`."""

    def __init__(self, pid: int, orders: socket.socket, tree: Tree, disk_mb: Callable[[], float] | None = None) -> None:
        """`disk_mb`: what the run's files take, where no tmpfs bounds it."""
        self.pid = pid
        self.orders = orders
        self.tree = tree
        self.disk_mb = disk_mb
        self.peak = Usage()

    def live(self, end_others: Callable[[], None]) -> None:
        """Wait for the request, then for its end; say how it went."""
        received = messages.receive(self.orders)
        if received is None:
            end_others()
            return
        limits, _ = received
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        status, cause = self._wait(limits)
        end_others()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = {
            "status": status,
            "cause": cause,
            "cpu_s": max(self.peak.cpu_s, used.ru_utime + used.ru_stime),
            "memory_mb": max(self.peak.memory_mb, 0.0),
        }
        messages.send(self.orders, report)

    def _wait(self, limits: dict[str, Any]) -> tuple[int, str]:
        """The code's wait status and what ended the run if it was not the code."""
        started = looked = time.monotonic()
        while True:
            status = self._reap()
            if status is not None:
                return status, ""
            now = time.monotonic()
            if now - looked >= POLL:
                looked = now
                cause = self._over(limits, now - started)
                if cause:
                    return self._end(), cause
            arrived = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, POLL)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                return self._end(), "killed"

    def _reap(self) -> int | None:
        """Reap who has ended; the wait status of the code's process if it has."""
        ended: int | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == self.pid:
                ended = status

    def _over(self, limits: dict[str, Any], seconds: float) -> str:
        """Which limit all processes together are over."""
        use = self.tree.usage(limits["memory_mb"], int(limits["pids"]) + 1)
        self.peak = Usage(
            max(use.memory_mb, self.peak.memory_mb),
            max(use.threads, self.peak.threads),
            max(use.cpu_s, self.peak.cpu_s),
        )
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        if use.memory_mb > limits["memory_mb"]:
            return "memory"
        if use.cpu_s + reaped.ru_utime + reaped.ru_stime > limits["cpu_s"]:
            return "cpu"
        if use.threads > limits["pids"] + 1:
            return "pids"
        if self.disk_mb is not None and self.disk_mb() > limits["file_mb"]:
            return "files"
        return "wall" if seconds > limits["wall_s"] + _OVERTIME else ""

    def _end(self) -> int:
        end_group(self.pid)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.pid:
                return status
