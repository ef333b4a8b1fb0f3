"""The filter of system calls: by an interpreter of its language for both architectures, and in the kernel for real."""

import asyncio
import errno
import platform
import struct

import pytest

from arpo.errors import ToolSetupError
from arpo.tools.sandbox import ladder, seccomp
from arpo.tools.sandbox.base import ExecLimits, ExecRequest
from arpo.tools.sandbox.syscalls import AUDIT_ARCH, KNOWN_UP_TO, numbers

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
MACHINES = ("x86_64", "aarch64")


def verdict(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the filter returns for a call; the language as far as the filter uses it."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(arguments + (0,) * (6 - len(arguments))))
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    place = accumulator = 0
    while True:
        operation, true, false, value = code[place]
        place += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x15:
            place += true if accumulator == value else false
        elif operation == 0x35:
            place += true if accumulator >= value else false
        elif operation == 0x54:
            accumulator &= value
        else:
            assert operation == 0x06
            return value


def asked(machine: str, name: str, *arguments: int, **options) -> int:
    return verdict(seccomp.program(machine, **options), AUDIT_ARCH[machine], numbers(machine)[name], arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_denied_calls(machine):
    for name in seccomp.DENIED:
        if name in numbers(machine):
            assert asked(machine, name) == EPERM, name
    for name in ("ptrace", "mount", "unshare", "bpf", "keyctl", "io_uring_setup", "open_by_handle_at"):
        assert name in numbers(machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone3", (), ENOSYS),
        ("clone", (0x01200011,), ALLOW),
        ("clone", (0x003D0F00,), ALLOW),
        *(("clone", (1 << bit | 17,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
        ("socket", (1, 1, 0), ALLOW),
        *(("socket", (family, 3, 0), EPERM) for family in (0, 2, 10, 16, 17, 38, 40)),
        ("socketpair", (1, 1, 0), ALLOW),
        ("socketpair", (2, 1, 0), EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("ioctl", (0, 0xFFFFFFFF_00005412), EPERM),
        ("ioctl", (0, 0x541C), EPERM),
        ("fcntl", (0, 4), ALLOW),
        ("fcntl", (0, 1031, 1 << 20), EPERM),
        ("prctl", (15,), ALLOW),
        ("prctl", (4, 0), EPERM),
        ("prctl", (1, 0), EPERM),
        ("prctl", (22,), EPERM),
        ("personality", (0xFFFFFFFF,), ALLOW),
        ("personality", (0x0040000,), EPERM),
        ("prlimit64", (0, 7), ALLOW),
        ("prlimit64", (1, 7), EPERM),
        ("sched_setaffinity", (1,), EPERM),
        ("setpriority", (0, 0, 5), ALLOW),
        ("setpriority", (0, 1, 5), EPERM),
        ("setpriority", (2, 0, 5), EPERM),
        ("ioprio_set", (1, 0), ALLOW),
        ("ioprio_set", (3, 0), EPERM),
        ("kill", (1, 9), ALLOW),
        ("fchmod", (3,), ALLOW),
    ],
)
def test_calls_that_depend_on_an_argument(machine, name, arguments, answer):
    assert asked(machine, name, *arguments) == answer


@pytest.mark.parametrize("machine", MACHINES)
def test_newer_calls_and_foreign_conventions(machine):
    program, own = seccomp.program(machine), AUDIT_ARCH[machine]
    assert verdict(program, own, KNOWN_UP_TO + 1) == ENOSYS
    assert verdict(program, own, 0x40000000 | 59) == ENOSYS  # x32's execve
    for other in (0x40000003, 0x40000028, AUDIT_ARCH["aarch64" if machine == "x86_64" else "x86_64"]):
        assert verdict(program, other, 0) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_on_the_host_more_is_denied(machine):
    for name in seccomp.ON_THE_HOST:
        if name in numbers(machine):
            assert asked(machine, name, 1, on_the_host=True) == EPERM, name
    assert asked(machine, "socketpair", 1, on_the_host=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_to_one_process_only(machine):
    for name in ("kill", "tgkill"):
        assert asked(machine, name, 77, on_the_host=True, signal_only=77) == ALLOW
        for other in (76, 0, 0xFFFFFFFF):
            assert asked(machine, name, other, on_the_host=True, signal_only=77) == EPERM
    assert asked(machine, "tkill", 77, signal_only=77) == EPERM
    assert asked(machine, "fcntl", 0, 8, signal_only=77) == EPERM


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are numbers of x86_64")
@pytest.mark.parametrize("rung", ["namespace", "landlock"])
def test_in_the_kernel(rung):
    try:
        box = ladder.choose(rung, ())
    except ToolSetupError as error:
        pytest.skip(f"this machine has no {rung} rung: {error}")
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(number, *arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(number, *arguments) < 0 else 0
print([tried(*call) for call in [
    (101, 16, 1, 0, 0), (165, 0, 0, 0, 0, 0), (272, 0x10000000), (308, 0, 0), (56, 0x10000000 | 17, 0, 0, 0, 0),
    (435, 0, 0), (321, 0, 0, 0), (298, 0, 0, 0, 0, 0), (425, 1, 0), (323, 0), (250, 0, 0), (41, 2, 1, 0),
    (41, 16, 3, 0), (135, 0x40000), (157, 4, 0), (302, 1, 0, 0, 0), (319, b'a', 0), (0x40000000 | 39,), (1000,)]])
"""
    try:
        result = asyncio.run(box.run(ExecRequest(code=code, limits=ExecLimits(wall_s=20))))
        killed = asyncio.run(box.run(ExecRequest(code=_FOREIGN, limits=ExecLimits(wall_s=20))))
    finally:
        box.end()
    assert result.stdout == f"{[1, 1, 1, 1, 1, 38, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 38, 38]}\n", result
    assert killed.error.startswith("the process was ended by SIG"), killed


_FOREIGN = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid of i386); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("not killed")
"""
