"""The host around a sandbox under attack: what is worth stealing or breaking, and whether it was.

A `World` puts up targets (files, environment, listeners, a victim process, shared memory), gives their names to the
attempts, and says afterwards what was touched. A `snapshot` holds the values of the host that nobody may change.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_attempts import Attempt

from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus, Sandbox

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534
_VICTIM = """
for name in URG TERM INT HUP USR1; do trap "echo $name >> '$0'" $name; done
echo ready
while :; do sleep 3600 & wait; done
"""
"""A shell that writes down the signals that it gets. Not Python: the interpreter may be where only root may look."""


class World:
    """Targets on this machine. `rung`: of the sandbox under attack."""

    def __init__(self, folder: Path) -> None:
        self.token = f"arpobat{secrets.token_hex(4)}"
        self.halves = secrets.token_hex(8), secrets.token_hex(8)
        self.folder = folder
        self.log: list[str] = []
        """What reached the listeners."""
        self._open: list[Any] = []
        self._put_files()
        self._listen()
        os.environ["FAKE_API_KEY"] = os.environ["ARPO_BATTERY_TOKEN"] = self.secret
        self._share_memory()
        self._start_victim()
        self.own = (os.nice(0), sorted(os.sched_getaffinity(0)))

    @property
    def secret(self) -> str:
        return "".join(self.halves)

    def _put_files(self) -> None:
        self.folder.chmod(0o755)
        for name in ("gold.txt", "dataset.parquet"):
            (self.folder / name).write_text(f"the answer is {self.secret}\n")
            (self.folder / name).chmod(0o644)
        self.signals = self.folder / "signals"
        self.signals.touch()
        self.signals.chmod(0o666)

    def _listen(self) -> None:
        self.abstract, self.path = f"{self.token}-abstract", str(self.folder / "socket")
        tcp = socket.create_server(("0.0.0.0", 0))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", 0))
        spare = socket.create_server(("127.0.0.1", 0))
        self.port, self.udp, self.spare = (one.getsockname()[1] for one in (tcp, udp, spare))
        spare.close()
        unix = []
        for address in ("\0" + self.abstract, self.path):
            stream = socket.socket(socket.AF_UNIX)
            stream.bind(address)
            stream.listen()
            unix.append(stream)
        os.chmod(self.path, 0o777)
        for one, name in ((tcp, "TCP"), (unix[0], "abstract socket"), (unix[1], "socket file")):
            self._watch(one, name, accept=True)
        self._watch(udp, "UDP", accept=False)

    def _watch(self, one: socket.socket, name: str, accept: bool) -> None:
        def serve() -> None:
            while True:
                try:
                    if accept:
                        one.accept()[0].close()
                    else:
                        one.recv(100)
                except OSError:
                    return
                self.log.append(name)

        self._open.append(one)
        threading.Thread(target=serve, daemon=True).start()

    def _share_memory(self) -> None:
        self.shm = Path("/dev/shm") / f"{self.token}-shm"
        self.shm.write_text(self.secret)
        self.shm.chmod(0o666)
        libc = ctypes.CDLL(None, use_errno=True)
        self.shm_key = secrets.randbelow(1 << 30) + 1
        self.shm_id = libc.shmget(self.shm_key, 4096, 0o1666)
        self._libc = libc

    def _start_victim(self) -> None:
        """Of the user that a sandbox's processes are likely to have, in a group of its own."""
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
        command = ["/bin/sh", "-c", _VICTIM, str(self.signals)]
        self.victim = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **user)
        assert self.victim.stdout is not None
        assert self.victim.stdout.readline() == b"ready\n"
        self.victim_values = _scheduling(self.victim.pid)

    def names(self, rung: str) -> dict[str, str]:
        own = str(rung == "namespace")
        prefixes = {sys.prefix, sys.base_prefix, str(REPOSITORY), *sys.path}
        parts = sorted({part for prefix in prefixes for part in Path(prefix).parts[1:]})
        return {
            "SECRET_FILE": str(self.folder / "gold.txt"),
            "DATASET": str(self.folder / "dataset.parquet"),
            "SECRET_FOLDER": str(self.folder),
            "SECRET_HALF": self.halves[0],
            "OTHER_HALF": self.halves[1],
            "ALLOWED_TREE": " ".join([*parts, "tmp", "work", "home", "cache"]),
            "REPOSITORY": str(REPOSITORY),
            "HOME": os.path.expanduser("~"),
            "TRAINER": str(os.getpid()),
            "TRAINER_GROUP": str(os.getpgrp()),
            "TRAINER_SESSION": str(os.getsid(0)),
            "VICTIM": str(self.victim.pid),
            "PARENT": "os.getppid()",
            "TOKEN": self.token,
            "COMM": self.token[:15],
            "TOKEN_NUMBER": str(int(self.token[-8:], 16)),
            "PORT": str(self.port),
            "UDP": str(self.udp),
            "FREE_PORT": str(self.spare),
            "ABSTRACT": self.abstract,
            "SOCKET_PATH": self.path,
            "SHM_NAME": self.shm.name,
            "SHM_KEY": str(self.shm_key),
            "SHM_ID": str(self.shm_id),
            "HOST_ADDRESS": _address(),
            "HOSTNAME": socket.gethostname(),
            "UID": str(os.getuid()),
            "OWN_NETWORK": own,
            "OWN_PROCESSES": own,
        }

    def disturbed(self) -> list[str]:
        """What the last attempt did to the targets; they are put right again."""
        found = [f"{name} was reached" for name in self.log]
        self.log.clear()
        if self.victim.poll() is not None:
            found.append("the victim was killed")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.victim.pid, signal.SIGKILL)
            self._start_victim()
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "Tt":
            found.append("the victim was stopped")
            os.kill(self.victim.pid, signal.SIGCONT)
        if self.signals.read_text():
            found.append(f"the victim got signals {self.signals.read_text()}")
            self.signals.write_text("")
        if _scheduling(self.victim.pid) != self.victim_values:
            found.append(f"the victim's priority or processors: {self.victim_values} -> {_scheduling(self.victim.pid)}")
            self.victim_values = _scheduling(self.victim.pid)
        if (os.nice(0), sorted(os.sched_getaffinity(0))) != self.own:
            found.append("the trainer's priority or processors changed")
            self.own = (os.nice(0), sorted(os.sched_getaffinity(0)))
        for name in ("gold.txt", "dataset.parquet"):
            if (self.folder / name).read_text() != f"the answer is {self.secret}\n":
                found.append(f"{name} was changed")
        if self.shm.read_text() != self.secret:
            found.append("shared memory was changed")
        return found

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        os.killpg(self.victim.pid, signal.SIGKILL)
        self.victim.wait()
        self.shm.unlink()
        self._libc.shmctl(self.shm_id, 0, None)
        os.environ.pop("FAKE_API_KEY")
        os.environ.pop("ARPO_BATTERY_TOKEN")


@contextlib.contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="arpo-battery-", dir="/var/tmp") as folder:
        made = World(Path(folder))
        try:
            yield made
        finally:
            made.close()


def _scheduling(pid: int) -> tuple[Any, ...]:
    io = ctypes.CDLL(None).syscall(252, 1, pid) if os.uname().machine == "x86_64" else 0
    return os.getpriority(os.PRIO_PROCESS, pid), sorted(os.sched_getaffinity(pid)), io


def _address() -> str:
    """Of this machine in its network; loopback if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


# Processes


def descendants(root: int | None = None) -> set[int]:
    """Processes below `root` (this one), zombies that nobody waited for included."""
    parents: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        parents.setdefault(parent, []).append(pid)
    found, queue = set(), [root or os.getpid()]
    while queue:
        for pid in parents.get(queue.pop(), ()):
            found.add(pid)
            queue.append(pid)
    return found


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                found[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def marked(*marks: str) -> list[str]:
    """Processes anywhere on the machine whose name or command line has one of the marks."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{name}/comm").read_text() + Path(f"/proc/{name}/cmdline").read_bytes().decode(
                "utf-8", "replace"
            )
            if any(mark in text for mark in marks):
                found.append(f"{name} ({text[:60]!r})")
    return found


# Values of the host

_VALUES = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysvipc/msg",
    "/proc/sysvipc/sem",
    "/proc/modules",
    "/proc/swaps",
)


def snapshot() -> dict[str, Any]:
    """What no attempt may change. Only what others on a busy machine do not change either."""
    import numpy

    files = [
        "/bin/sh",
        "/bin/bash",
        "/etc/passwd",
        "/etc/hosts",
        "/etc/ld.so.cache",
        "/etc/resolv.conf",
        sys.executable,
    ]
    files += [os.__file__, numpy.__file__, "/lib/x86_64-linux-gnu/libc.so.6"]
    seen: dict[str, Any] = {name: Path(name).read_text() for name in _VALUES if os.access(name, os.R_OK)}
    seen |= {name: _fingerprint(name) for name in files if os.path.exists(name)}
    seen["site-packages"] = sorted(p.name for p in Path(numpy.__file__).parents[1].iterdir() if p.name != "__pycache__")
    seen["environment"] = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    seen["mounts"] = sorted(
        line.partition(" - ")[0].split(" ", 2)[2]
        for line in _lines("/proc/self/mountinfo")
        if "/pytest-of-" not in line  # a test of another process that fills a small disk
    )
    seen["limits"] = Path("/proc/self/limits").read_text()
    seen["descriptors"] = len(os.listdir("/proc/self/fd"))
    seen["cwd"], seen["umask"] = os.getcwd(), _umask()
    return seen


def traces(token: str) -> list[str]:
    """Files with the token in their names, wherever code may have put some, and what the sandbox itself left."""
    found = []
    for folder in (
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/",
        "/root",
        "/run",
        "/dev",
        os.path.expanduser("~"),
        str(REPOSITORY),
    ):
        with contextlib.suppress(OSError):
            found += [f"{folder}/{name}" for name in os.listdir(folder) if token in name]
    return [name for name in found if not name.endswith("-shm")]


def listening() -> set[str]:
    """Addresses at which processes of this tree listen, by network file."""
    inodes = set()
    for pid in {os.getpid(), *descendants()}:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").rstrip("]"))
    lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/net/{name}")[1:]]
    return {one[1] for one in lines if one[3] == "0A" and one[9] in inodes}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _fingerprint(name: str) -> tuple[str, int, int]:
    info = os.stat(name)
    return hashlib.sha256(Path(name).read_bytes()).hexdigest(), info.st_mode, info.st_uid


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {_told(before[name], after.get(name))}"[:500] for name in before if before[name] != after.get(name)
    ]


def _told(before: Any, after: Any) -> str:
    if isinstance(before, list) and isinstance(after, list):
        gone, new = ([x for x in one if x not in other] for one, other in ((before, after), (after, before)))
        return f"gone {gone}, new {new}"
    return f"{before!r} -> {after!r}"


# An attempt


@dataclass
class Outcome:
    """What came of an attempt. `holes`: empty if it was contained; `lag`: seconds until nothing of it was left."""

    attempt: Attempt
    result: ExecResult
    holes: list[str] = field(default_factory=list)
    lag: float = 0.0


async def make(sandbox: Sandbox, attempt: Attempt, around: World, patience: float = 1.0) -> Outcome:
    """Run one attempt, then an honest program, and look at everything."""
    request = ExecRequest(
        code=attempt.program(around.names(sandbox.name)),
        limits=attempt.limits,
        files=attempt.files,
        earlier=attempt.earlier,
    )
    started = time.perf_counter()
    result = await asyncio.wait_for(sandbox.run(request), attempt.limits.wall_s + 20)
    took = time.perf_counter() - started
    out = Outcome(attempt, result)
    out.lag, left = await _gone(patience)
    out.holes = _holes(attempt, result, around)
    if left:
        out.holes.append(f"{len(left)} processes are left: {sorted(left)[:5]}")
    if took > attempt.limits.wall_s + 3:
        out.holes.append(f"it took {took:.1f} s of {attempt.limits.wall_s:g}")
    out.holes += around.disturbed()
    honest = await asyncio.wait_for(
        sandbox.run(ExecRequest(code="print(6 * 7)\nimport numpy\nint(numpy.arange(4).sum())")), 60
    )
    if (honest.status, honest.stdout, honest.value) != (ExecStatus.OK, "42\n", "6"):
        out.holes.append(f"an honest program afterwards: {honest}")
    return out


def running() -> set[int]:
    """Processes below this one that run a policy's code: those, and no others, are behind a filter of system calls."""
    own = _filters("self")
    return {pid for pid in descendants() if _filters(pid) > own}


def _filters(pid: int | str) -> int:
    with contextlib.suppress(OSError):
        for line in _lines(f"/proc/{pid}/status"):
            if line.startswith("Seccomp_filters:"):
                return int(line.split()[1])
    return 0


async def _gone(patience: float) -> tuple[float, set[int]]:
    """Seconds until no process runs a policy's code; those that do after `patience`."""
    started = time.perf_counter()
    while left := running():
        if time.perf_counter() - started > patience:
            break
        await asyncio.sleep(0.005)
    return time.perf_counter() - started, left


def _holes(attempt: Attempt, result: ExecResult, around: World) -> list[str]:
    texts = "\n".join((result.stdout, result.stderr, result.error, result.value or ""))
    found = [line[:300] for line in texts.splitlines() if "ESCAPED" in line]
    if around.secret in texts:
        found.append("a secret was shown")
    if result.status not in attempt.ends:
        shown = (result.error or result.stderr or result.stdout)[:300]
        found.append(f"it ended with {result.status.value}: {shown!r}")
    if "PWNED" in texts:
        found.append("code of an earlier run ran")
    if attempt.check is not None and (wrong := attempt.check(result)):
        found.append(wrong)
    if survivors := marked(around.token[:15], around.names("x")["TOKEN_NUMBER"]):
        found.append(f"processes outlived it: {survivors[:3]}")
    if files := traces(around.token):
        found.append(f"files on the machine: {files[:3]}")
    return found
