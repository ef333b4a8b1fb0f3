"""Runs a command and leaves nothing of it behind, however its parent ends. A program of its own: `guard.py PARENT ...`.

The kernel tells this process when its parent dies, by whatever signal; then, and when the command itself ends or this
process is asked to end, everything that the command has started is killed, processes that left its group or session
included: as their subreaper this process inherits those whose own parents are gone. Without it a server that does not
watch its standard input, or a helper that it started, would outlive a trainer that was killed.

It imports nothing but the standard library's smallest modules, so that it starts in some milliseconds.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE = 0.25
"""Seconds that the command has to end by itself when it is asked to."""


def main(parent: int, command: list[str]) -> int:
    """Run the command until it ends; its exit code, 128 + n for signal n, 127 if it cannot be started."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        return 0
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals | {signal.SIGCHLD})
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=[], setsigdef=[signal.SIGPIPE])
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    _let_go_of_pipes()
    status = _watch(child, signals)
    _kill_descendants()
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _let_go_of_pipes() -> None:
    """Whoever reads what the command writes must see its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _watch(child: int, signals: set[signal.Signals]) -> int:
    """Wait until the command ends, or is made to; its wait status."""
    deadline = None
    while True:
        wait = 3600.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        told = signal.sigtimedwait(signals | {signal.SIGCHLD}, wait)
        while (reaped := _reap()) is not None:
            if reaped[0] == child:
                return reaped[1]
        if told is not None and told.si_signo in signals and deadline is None:
            deadline = time.monotonic() + _PATIENCE
            _send(child, signal.SIGTERM)
        elif deadline is not None and time.monotonic() >= deadline:
            _send(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]


def _reap() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _send(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def _kill_descendants() -> None:
    """Kill children until there are none: those of the killed become ours."""
    while True:
        for pid in _children():
            _send(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Processes whose parent is this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
