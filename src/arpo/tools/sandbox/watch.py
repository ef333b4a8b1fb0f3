"""What all processes of a run use together, which no limit of the kernel bounds without a cgroup.

Resident memory is read first, because it is cheap; it counts what processes share once for each, so only where its sum
is over the limit the exact shares (PSS) decide. Memory in the run's tmpfs counts too. The first process of a process
namespace sees all of the run and nothing else in its /proc; without one, the tree of children is walked.
"""

import contextlib
import math
import os
import resource
import signal
import time
from dataclasses import dataclass

_PAGE_MB = resource.getpagesize() / (1 << 20)
_REST = 4.0
"""Times what an exact look took: how long a run whose processes share much is left alone after it."""
_FREE_DESCRIPTORS = 256
_SOCKET_MB = 0.2
"""What fits into the send buffer of a socket as Linux makes it."""
_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Usage:
    """MiB, processes and threads, CPU seconds of the processes that are there and of the children they waited for."""

    memory_mb: float = 0.0
    threads: int = 0
    cpu_s: float = 0.0


class Tree:
    """The processes of a run. `proc`: a descriptor of a /proc; `top`: the process whose descendants count, None if all
    in that /proc but the caller do. `writable`: a folder on the run's tmpfs, if it has one.
    """

    def __init__(self, proc: int, top: int | None, writable: str | None, shared_mb: float) -> None:
        self.proc = proc
        self.top = top
        self.writable = writable
        self.shared_mb = shared_mb
        self._left = self._seen = self._next = 0.0
        self.children_told = _exists(proc, f"{os.getpid()}/task/{os.getpid()}/children")

    def pids(self, most: float = math.inf) -> list[int]:
        """Who is there now; a few more than `most` at the most, because a fork bomb outruns whoever counts it."""
        if self.top is None:
            return [int(name) for name in os.listdir(self.proc) if name.isdigit() and name != "1"]
        found: list[int] = []
        ahead = [self.top]
        while ahead and len(found) <= most:
            children = self._children(ahead.pop())
            found += children
            ahead += children
        return found

    def _children(self, pid: int) -> list[int]:
        if not self.children_told:
            stats = ((int(name), self._read(f"{name}/stat")) for name in os.listdir(self.proc) if name.isdigit())
            return [child for child, stat in stats if stat.rpartition(")")[2].split()[1:2] == [str(pid)]]
        children: list[int] = []
        for thread in self._list(f"{pid}/task"):
            children += map(int, self._read(f"{pid}/task/{thread}/children").split())
        return children

    def usage(self, limit_mb: float, most: int) -> Usage:
        """Now. Exact where memory is above the limit. Where there are more than `most` processes, which ends the run,
        they are only counted: a fork bomb leaves no time for more.
        """
        use = Usage()
        pids = self.pids(most)
        if len(pids) > most:
            return Usage(threads=len(pids))
        for pid in pids:
            fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
            if len(fields) > 17:
                use.cpu_s += sum(map(int, fields[11:15])) * _TICK
                use.threads += int(fields[17])
                use.memory_mb += max(0.0, self._resident_mb(pid) - self.shared_mb)
        files = self._files_mb() + self._sockets_mb(pids)
        if use.memory_mb + files > limit_mb:
            use.memory_mb = self._bounded_mb(use.memory_mb, pids, limit_mb - files)
        use.memory_mb += files
        return use

    def _sockets_mb(self, pids: list[int]) -> float:
        """What descriptors beyond those of one process may hold in the kernel, if all are sockets that nobody reads."""
        count = sum(len(self._list(f"{pid}/fd")) for pid in pids) if len(pids) > 1 else 0
        return max(0, count - _FREE_DESCRIPTORS) * _SOCKET_MB

    def _resident_mb(self, pid: int) -> float:
        """Without pages of files, which belong to nobody."""
        lines = self._read(f"{pid}/status").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))) / 1024

    def _bounded_mb(self, resident_mb: float, pids: list[int], limit_mb: float) -> float:
        """Exact if it may be above the limit. After an exact look it cannot have grown by more than what is resident
        has, but for what is written into shared pages; so that a run of many processes that share much is not held up
        by being looked at all the time.
        """
        now = time.monotonic()
        self._left -= max(0.0, resident_mb - self._seen)
        self._seen = resident_mb
        if self._left <= 0.0 or now >= self._next:
            self._left = limit_mb - self._exact_mb(pids, limit_mb)
            self._next = time.monotonic() + _REST * (time.monotonic() - now)
        return limit_mb - self._left

    def _exact_mb(self, pids: list[int], limit_mb: float) -> float:
        """All stand still meanwhile: a look takes milliseconds, in which many busy processes take gigabytes. Who is
        above the limit is left standing, to be ended.
        """
        _signal(pids, signal.SIGSTOP)
        pids = self.pids()
        _signal(pids, signal.SIGSTOP)
        used = sum(map(self._share_mb, pids))
        if used <= limit_mb:
            _signal(pids, signal.SIGCONT)
        return used

    def _share_mb(self, pid: int) -> float:
        for line in self._read(f"{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        fields = self._read(f"{pid}/statm").split()  # gone, or a kernel before 4.14
        return (int(fields[1]) - int(fields[2])) * _PAGE_MB if fields else 0.0

    def _files_mb(self) -> float:
        if self.writable is None:
            return 0.0
        status = os.statvfs(self.writable)
        return (status.f_blocks - status.f_bfree) * status.f_frsize / (1 << 20)

    def _list(self, path: str) -> list[str]:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.proc)
        except OSError:
            return []
        try:
            return os.listdir(folder)
        except OSError:
            return []
        finally:
            os.close(folder)

    def _read(self, path: str) -> str:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)
        except OSError:
            return ""
        try:
            return os.read(file, 65536).decode("ascii", "replace")
        except OSError:
            return ""
        finally:
            os.close(file)


def _exists(folder: int, path: str) -> bool:
    try:
        os.stat(path, dir_fd=folder)
    except OSError:
        return False
    return True


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
