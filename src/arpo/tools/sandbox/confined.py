"""The two rungs as the loader sees them: how it shuts itself in, how it makes a box, how a box ends."""

import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Protocol

from arpo.tools.sandbox import child, namespaces, native, rlimits, seccomp
from arpo.tools.sandbox.view import View
from arpo.tools.sandbox.watch import Tree

_CAP_SYS_PTRACE = 19


class Rung(Protocol):
    """What differs between the rungs. `end_signal`: what ends a box. `facts`: for the trainer."""

    end_signal: int
    facts: dict[str, Any]

    def fork(self) -> int:
        """As `os.fork`: a copy that is to become the first process of a box."""
        ...

    def descriptors(self) -> tuple[int, ...]:
        """Those that a first process keeps."""
        ...

    def live(self, first: socket.socket, code: socket.socket) -> None:
        """The life of a first process."""
        ...

    def clear(self, pid: int) -> None:
        """Clear up after a box that has ended."""
        ...

    def close(self) -> None:
        """Clear up at the end."""
        ...


def give_up_root(config: dict[str, Any]) -> None:
    """Become the unprivileged user of the configuration, if this is root. Raises OSError."""
    if os.geteuid() == 0 or os.getuid() == 0:
        os.setgroups([])
        os.setresgid(config["gid"], config["gid"], config["gid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])


def _shared_mb() -> float:
    """MiB of the loader that its copies share with it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


class NamespaceRung:
    """New namespaces of every kind for each run."""

    end_signal = int(signal.SIGKILL)

    def __init__(self, view: View, config: dict[str, Any]) -> None:
        namespaces.enter_private_root(view)
        give_up_root(config)
        self.uid, self.gid = os.geteuid(), os.getegid()
        self.facts: dict[str, Any] = {"folders": view.folders, "files": view.files}
        self.filter = seccomp.program(sockets=True)
        self.shared_mb = _shared_mb()

    def fork(self) -> int:
        return native.fork_into(namespaces.PER_RUN)

    def descriptors(self) -> tuple[int, ...]:
        return ()

    def live(self, first: socket.socket, code: socket.socket) -> None:
        os.setsid()
        namespaces.map_ids(self.uid, self.gid)
        native.prctl(native.PR_SET_PDEATHSIG, signal.SIGKILL)
        namespaces.mount_proc()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            first.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            child.code_process(code, self._confine)
        code.close()
        native.drop_capabilities(keep=_CAP_SYS_PTRACE)
        native.prctl(native.PR_SET_DUMPABLE, 0)
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        child.First(pid, first, Tree(proc, None, None, self.shared_mb)).live(_end_all)

    def _confine(self, limits: dict[str, Any]) -> tuple[bytes, str]:
        namespaces.mount_writable(int(limits["file_mb"]))
        rlimits.apply(limits, int(limits["pids"]) + 1)
        return self.filter, "/work"

    def clear(self, pid: int) -> None:
        pass

    def close(self) -> None:
        pass


def _end_all() -> None:
    """In the first process of a process namespace: end all others and reap them."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


RUNGS: dict[str, Callable[[View, dict[str, Any]], Rung]] = {"namespace": NamespaceRung}
