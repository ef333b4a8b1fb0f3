"""The system calls that sandboxed code may not make, as a filter in the kernel's packet-filter language.

A deny list over the calls that are known, and "no such call" for all that are newer: an allow list breaks with every
release of a C library or of numpy, a plain deny list is open to every new call of the kernel. Denied is what reaches
across the sandbox's walls (other processes' memory, mounts, namespaces, keys, handles), what offers the kernel's less
tried parts to an attacker (bpf, io_uring, userfaultfd, perf, modules), what takes memory that no limit counts (memfd,
System V and POSIX queues, grown pipes), and what would blind the watcher (limits and priorities of other processes,
`dumpable`). What is denied fails with EPERM, so that code sees an exception; a foreign calling convention kills.

Arguments are compared in their lower 32 bits, which is all that the kernel reads of those that are looked at here.
"""

import ctypes
import struct
from collections.abc import Iterable, Sequence

from arpo.tools.sandbox import native
from arpo.tools.sandbox.syscalls import AUDIT_ARCH, KNOWN_UP_TO, MACHINE, numbers

_LOAD, _JEQ, _JGE, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000
_SECCOMP_MODE_FILTER = 2

_DENIED = (
    "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd "
    "mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr "
    "statmount listmount unshare setns name_to_handle_at open_by_handle_at fanotify_init fanotify_mark "
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register seccomp lsm_set_self_attr "
    "keyctl add_key request_key kexec_load kexec_file_load init_module finit_module delete_module create_module "
    "get_kernel_syms query_module quotactl quotactl_fd swapon swapoff reboot sethostname setdomainname iopl ioperm "
    "acct syslog lookup_dcookie nfsservctl vhangup settimeofday clock_settime clock_adjtime adjtimex "
    "memfd_create memfd_secret shmget semget msgget mq_open migrate_pages move_pages remap_file_pages modify_ldt "
    "uselib _sysctl sysfs ustat vserver capset setsid setpgid"
)
DENIED = tuple(_DENIED.split())
_BY_PATH = (
    "socket chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat "
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat truncate "
    "inotify_init inotify_init1 shmat shmctl semop semctl semtimedop msgsnd msgrcv msgctl mq_unlink pidfd_open"
)
ON_THE_HOST = tuple(_BY_PATH.split())
"""Denied too where the files, sockets and queues of the host are within reach: what Landlock does not look at."""
MISSING = ("clone3",)
"""Answered with "no such call": the C library then takes `clone`, whose flags the filter can read."""
_NEW_NAMESPACES = 0x7E020000
_AF_UNIX = 1
_F_SETPIPE_SZ = 1031
_SOCKET_BUFFERS = (7, 32)
"""SO_SNDBUF, SO_SNDBUFFORCE: memory of the kernel, which no limit counts."""
_SIGNAL_OWNER = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a descriptor."""
_REQUESTS = (0x5412, 0x541C, 0x5423, 0x8901, 0x8902)
"""TIOCSTI, TIOCLINUX, TIOCSETD, FIOSETOWN, SIOCSPGRP: input as if typed, the console, line disciplines, signals."""
_PRCTL_ALLOWED = (2, 3, 15, 16, 21, 23, 27, 29, 30, 37, 38, 39, 42, 0x53564D41)
"""Names, timer slack, names of memory areas, and questions."""
_QUERY_PERSONALITY = 0xFFFFFFFF
_SELF_ONLY = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setscheduler": 0,
    "sched_setparam": 0,
    "sched_setattr": 0,
}
"""Calls whose argument of that number names a process: 0, oneself."""

Instruction = tuple[int, int, int, int]


def program(machine: str = MACHINE, *, on_the_host: bool = False, signal_only: int | None = None) -> bytes:
    """The filter. `on_the_host`: for a process without namespaces of its own; `signal_only`: the one process that may
    be sent signals, None where a process namespace or Landlock sees to that.
    """
    table = numbers(machine)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
        (_JGE, 0, 1, KNOWN_UP_TO + 1),  # the x32 convention too, which sets bit 30
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    code += _each(table, MISSING, _ENOSYS)
    code += _each(table, DENIED + ON_THE_HOST if on_the_host else DENIED, _EPERM)
    code += _looked_at(table, signal_only)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _each(table: dict[str, int], names: Iterable[str], error: int) -> list[Instruction]:
    code: list[Instruction] = []
    for name in names:
        if name in table:
            code += [(_JEQ, 0, 1, table[name]), (_RETURN, 0, 0, _ERRNO | error)]
    return code


def _looked_at(table: dict[str, int], signal_only: int | None) -> list[Instruction]:
    """Calls that are allowed or not by an argument."""
    code = _when(table["clone"], 0, [(_AND, 0, 0, _NEW_NAMESPACES)], [0], allow=True)
    for name in ("socket", "socketpair"):
        code += _when(table[name], 0, [], [_AF_UNIX], allow=True)
    code += _when(table["setsockopt"], 2, [], _SOCKET_BUFFERS, allow=False)
    code += _when(table["ioctl"], 1, [], _REQUESTS, allow=False)
    owners = () if signal_only is None else _SIGNAL_OWNER
    code += _when(table["fcntl"], 1, [], [_F_SETPIPE_SZ, *owners], allow=False)
    code += _when(table["prctl"], 0, [], _PRCTL_ALLOWED, allow=True)
    code += _when(table["personality"], 0, [], [_QUERY_PERSONALITY], allow=True)
    for name, argument in _SELF_ONLY.items():
        code += _when(table[name], argument, [], [0], allow=True)
    code += _own_priority(table["setpriority"], 0) + _own_priority(table["ioprio_set"], 1)
    if signal_only is not None:
        code += _signals(table, signal_only)
    return code


def _own_priority(number: int, process: int) -> list[Instruction]:
    """Allowed for this one process: argument 0 says "a process" and argument 1 is 0."""
    body: list[Instruction] = [
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_JEQ, 0, 2, 0),
        (_LOAD, 0, 0, _ARGUMENTS),
        (_JEQ, 1, 0, process),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return [(_JEQ, 0, len(body), number), *body]


def _signals(table: dict[str, int], pid: int) -> list[Instruction]:
    code = _each(table, ["tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"], _EPERM)
    for name in ("kill", "tgkill"):
        code += _when(table[name], 0, [], [pid], allow=True)
    return code


def _when(
    number: int, argument: int, before: Sequence[Instruction], values: Sequence[int], *, allow: bool
) -> list[Instruction]:
    """For one call: allowed, or denied, if the argument (after `before` was done to it) is one of the values."""
    good, bad = (_ALLOW, _ERRNO | _EPERM) if allow else (_ERRNO | _EPERM, _ALLOW)
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *before]
    for place, value in enumerate(values):
        body.append((_JEQ, len(values) - place, 0, value))
    body += [(_RETURN, 0, 0, bad), (_RETURN, 0, 0, good)]
    return [(_JEQ, 0, len(body), number), *body]


def install(filter_: bytes) -> None:
    """For this process and all that come from it, for good. Raises OSError."""
    native.prctl(native.PR_SET_NO_NEW_PRIVS, 1)
    count = len(filter_) // 8
    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    header = struct.pack("=HxxxxxxQ", count, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(header, len(header))
    native.prctl(native.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, pointer)
