"""The two rungs as the loader sees them: how it shuts itself in, how it makes a box, how a box ends."""

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Protocol

from arpo.tools.sandbox import child, landlock, namespaces, native, rlimits, scratch, seccomp
from arpo.tools.sandbox.view import View
from arpo.tools.sandbox.watch import Tree

_CAP_SYS_PTRACE = 19
_IN_MEMORY = namespaces.WORK
_ROOM = 6
"""Times its limit of processes that a run without a user namespace may have for a moment."""


class Rung(Protocol):
    """What differs between the rungs. `end_signal`: what ends a box. `facts`: for the trainer."""

    end_signal: int
    facts: dict[str, Any]

    def shut_in(self, view: View, config: dict[str, Any]) -> None:
        """Leave to this process what its copies need. Raises OSError."""
        ...

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


def check_readable(view: View) -> None:
    """Raises PermissionError for a part of the view that this process, its rights given up, cannot read."""
    for path in [*view.folders, *view.files]:
        if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
            raise PermissionError(
                errno.EACCES,
                f"{path} cannot be read by user {os.getuid()}, as whom code runs: let others read it and the folders "
                "above it (chmod o+rX), or create the environment in a folder that all can read",
            )


def _shared_mb() -> float:
    """MiB that count as resident in a new copy of the loader. A copy begins without the pages of files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident, of_files = map(int, file.read().split()[1:3])
    return (resident - of_files) * os.sysconf("SC_PAGESIZE") / (1 << 20)


class NamespaceRung:
    """New namespaces of every kind for each run."""

    end_signal = int(signal.SIGKILL)

    def __init__(self) -> None:
        namespaces.enter_mounts()

    def shut_in(self, view: View, config: dict[str, Any]) -> None:
        self.temporary = namespaces.enter_private_root(view)
        os.environ.update(HOME=namespaces.WORK, TMPDIR=self.temporary)
        give_up_root(config)
        check_readable(view)
        self.uid, self.gid = os.geteuid(), os.getegid()
        self.facts: dict[str, Any] = {"folders": view.folders, "files": view.files}
        self.filter = seccomp.program()
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
        child.First(pid, first, Tree(proc, None, namespaces.WORK, self.shared_mb)).live(_end_all)

    def _confine(self, limits: dict[str, Any]) -> tuple[bytes, str]:
        namespaces.mount_writable(int(limits["file_mb"]), self.temporary)
        rlimits.apply(limits, int(limits["pids"]) + 1)
        return self.filter, namespaces.WORK

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


def _mounts_of_its_own() -> bool:
    try:
        namespaces.enter_mounts()
    except OSError:
        return False
    return True


def _work_in_memory(view: View) -> None:
    """Where root may mount, the loader sees no more than the view, and its runs' folders are no files of the host."""
    namespaces.enter_private_root(view)
    flags = native.MS_NOSUID | native.MS_NODEV | native.MS_NOEXEC
    native.mount("tmpfs", _IN_MEMORY, "tmpfs", flags, "size=2g,mode=755")


class LandlockRung:
    """No namespaces for the run: Landlock, a tighter filter, a supervisor that adopts orphans and ends them all."""

    end_signal = int(signal.SIGTERM)

    def __init__(self) -> None:
        self.abi = landlock.version()
        if self.abi == 0:
            raise OSError(errno.ENOSYS, "the kernel's Landlock is missing or off")
        self.private = os.geteuid() == 0 and _mounts_of_its_own()

    def shut_in(self, view: View, config: dict[str, Any]) -> None:
        self.view = view
        if self.private:
            _work_in_memory(view)
        user = (config["uid"], config["gid"]) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        self.folder, self._lock = scratch.create(_IN_MEMORY if self.private else config["scratch"], *user)
        give_up_root(config)
        check_readable(view)
        self.facts: dict[str, Any] = {"landlock": self.abi, "scratch": self.folder, "private_root": self.private}
        self.shared_mb = _shared_mb()
        self.filter = seccomp.program(on_the_host=True)

    def fork(self) -> int:
        return os.fork()

    def descriptors(self) -> tuple[int, ...]:
        return ()

    def live(self, first: socket.socket, code: socket.socket) -> None:
        os.setsid()
        native.prctl(native.PR_SET_CHILD_SUBREAPER, 1)
        native.prctl(native.PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        own = self._own(os.getpid())
        os.mkdir(own, 0o700)
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            first.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            native.prctl(native.PR_SET_PDEATHSIG, signal.SIGKILL)
            child.code_process(code, lambda limits: self._confine(limits, own, proc))
        code.close()
        native.prctl(native.PR_SET_DUMPABLE, 0)
        tree = Tree(proc, os.getpid(), None, self.shared_mb)

        def end_all() -> None:
            child.end_group(pid)
            _end_descendants(tree)
            scratch.remove(own)

        child.First(pid, first, tree, lambda: scratch.size_mb(own)).live(end_all)

    def _own(self, pid: int) -> str:
        return os.path.join(self.folder, str(pid))

    def _confine(self, limits: dict[str, Any], own: str, proc: int) -> tuple[bytes, str]:
        for name in ("HOME", "TMPDIR"):
            os.environ[name] = own
        # The kernel counts all of this user's, runs that start later too: the watcher keeps the limit, this stops a
        # fork bomb in the moment before it does.
        rlimits.apply(limits, rlimits.processes_of_user(proc) + _ROOM * int(limits["pids"]))
        landlock.confine(self.view, own, self.abi)
        if self.abi >= landlock.SCOPES_FROM:
            return self.filter, own
        return seccomp.program(on_the_host=True, signal_only=os.getpid()), own

    def clear(self, pid: int) -> None:
        own = self._own(pid)
        if os.path.lexists(own):
            scratch.remove(own)

    def close(self) -> None:
        scratch.remove(self.folder)
        os.close(self._lock)


def _end_descendants(tree: Tree) -> None:
    """Kill all that came from this process until none is left; orphans become its children and are reaped."""
    killed: set[int] = set()
    while True:
        here = set(tree.pids())
        for pid in here:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if here <= killed:  # nobody new: give them time to end
            signal.sigtimedwait({signal.SIGCHLD}, 0.005)
        killed = here


RUNGS: dict[str, Callable[[], Rung]] = {"namespace": NamespaceRung, "landlock": LandlockRung}
