"""The system calls that Python has no name for, through the C library.

Only what the launcher needs, each raising OSError. Imports nothing of ours but the table of numbers, because the loader
process imports it before any package.
"""

import ctypes
import os

from arpo.tools.sandbox.syscalls import NUMBERS

_LIBC = ctypes.CDLL(None, use_errno=True)
_RAW = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock during a call: a copy of the process must not come to life without it."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
SIGCHLD = 17

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 28, 36, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECUREBITS_LOCKED = 0xEF
"""NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and their locks, and the lock of KEEP_CAPS, which stays off."""
_CAPABILITY_VERSION_3 = 0x20080522
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MADV_COLLAPSE = 25
HUGE_PAGE = 2 << 20


def call(name: str, *arguments: object) -> int:
    """A system call by name. Raises OSError."""
    return _checked(_LIBC.syscall(ctypes.c_long(NUMBERS[name]), *arguments), name)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0, third: object = 0) -> int:
    """Raises OSError."""
    arguments = [ctypes.c_ulong(value), third if not isinstance(third, int) else ctypes.c_ulong(third)]
    return _checked(_LIBC.prctl(option, *arguments, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl({option})")


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """Raises OSError that names the target."""
    pieces = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _LIBC.mount(*pieces, ctypes.c_ulong(flags), data.encode() if data else None)
    _checked(result, f"mount {kind or source or ''} on {target}")


def unmount(target: str) -> None:
    """Lazily: nothing new can enter it. Raises OSError."""
    _checked(_LIBC.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def protect_mount(target: str, keep: int) -> None:
    """Make a bind mount and all below it read-only, without set-id programs. `keep`: flags it has from its source."""
    attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID
    settings = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    try:
        call("mount_setattr", _AT_FDCWD, target.encode(), _AT_RECURSIVE, ctypes.byref(settings), ctypes.c_size_t(32))
    except OSError:  # before Linux 5.12
        mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | keep)


def pivot_root(new: str, old: str) -> None:
    """Raises OSError."""
    call("pivot_root", new.encode(), old.encode())


def unshare(flags: int) -> None:
    """Raises OSError."""
    _checked(_LIBC.unshare(flags), "unshare")


def fork_into(flags: int) -> int:
    """`os.fork` into new namespaces: the child is the first process of a new process namespace. Raises OSError."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_RAW.syscall(ctypes.c_long(NUMBERS["clone"]), ctypes.c_ulong(flags | SIGCHLD), None, None, None, None))
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"clone into namespaces: {os.strerror(number)}")
    return pid


def drop_capabilities(keep: int | None = None) -> None:
    """All but one that may be kept, for good: bounding set, ambient set, securebits, the sets. Raises OSError."""
    for number in range(64):
        if _LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            break  # the first number that the kernel does not know, or no right to drop and so none to lose
    _LIBC.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    _LIBC.prctl(PR_SET_SECUREBITS, ctypes.c_ulong(_SECUREBITS_LOCKED), 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    mask = 0 if keep is None else 1 << keep
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(mask, mask)))


def collapse(start: int, end: int) -> None:
    """Turn the whole huge pages between two addresses into huge pages; what cannot be is left."""
    address = -(-start // HUGE_PAGE) * HUGE_PAGE
    while address + HUGE_PAGE <= end:
        _LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE_PAGE), _MADV_COLLAPSE)
        address += HUGE_PAGE
