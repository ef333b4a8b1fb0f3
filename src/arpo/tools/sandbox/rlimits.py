"""Limits of the kernel on each process of a run.

Memory is bounded as what may be mapped on top of the loaded packages; what all processes use together is the
watcher's. Counts of processes hold for the run alone in a user namespace of its own; elsewhere the kernel counts all
of the user's, so those that are there already are added and the watcher has the last word.
"""

import os
import resource
from typing import Any

_PAGE = resource.getpagesize()
_OPEN_FILES = 256
_STACK = 8 << 20


def apply(limits: dict[str, Any], processes: int) -> None:
    """`limits`: the request's, as a dict; `processes`: how many of this user may be there. Raises OSError, ValueError.

    RLIMIT_CPU ends with a signal that code could ignore, one second later with one that it cannot.
    """
    mapped = _mapped() + (int(limits["memory_mb"]) << 20)
    seconds = max(1, -int(-limits["cpu_s"] // 1))
    for what, soft, hard in (
        (resource.RLIMIT_AS, mapped, mapped),
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_FSIZE, int(limits["file_mb"]) << 20, int(limits["file_mb"]) << 20),
        (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
        (resource.RLIMIT_STACK, _STACK, _STACK),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 256, 256),
    ):
        highest = resource.getrlimit(what)[1]
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(what, (soft, hard))


def _mapped() -> int:
    """Bytes that this process has mapped."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * _PAGE


def processes_of_user(proc: int) -> int:
    """Processes and threads of this process's user; `proc`: a descriptor of /proc."""
    count = 0
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                if os.stat(name, dir_fd=proc).st_uid == os.getuid():
                    count += os.stat(f"{name}/task", dir_fd=proc).st_nlink - 2  # a folder per thread
            except OSError:
                continue
    return count
