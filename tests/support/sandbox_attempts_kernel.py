# ruff: noqa: E501 - hostile programs keep their lines
"""Attempts on the kernel: calls that a sandbox has no business with, by every way to make them.

Numbers are x86-64's; elsewhere these say nothing.
"""

import platform

from sandbox_attempts import ERROR, OK, Attempt

EVERY = """
CALLS = {
    "ptrace traceme": (101, 0, 0, 0, 0), "ptrace attach": (101, 16, @PARENT@, 0, 0), "ptrace seize": (101, 0x4206, @PARENT@, 0, 0),
    "process_vm_readv": (310, @PARENT@, 0, 0, 0, 0, 0), "process_vm_writev": (311, @PARENT@, 0, 0, 0, 0, 0),
    "kcmp": (312, @PARENT@, @PARENT@, 0, 0, 0), "pidfd_getfd": (438, 0, 0, 0), "process_madvise": (440, 0, 0, 0, 0, 0),
    "process_mrelease": (448, 0, 0),
    "unshare user": (272, 0x10000000), "unshare mount": (272, 0x20000), "unshare pid": (272, 0x20000000), "unshare net": (272, 0x40000000),
    "unshare all": (272, 0x7E020000), "unshare time": (272, 0x80), "unshare cgroup": (272, 0x2000000),
    "setns": (308, 0, 0), "setns user": (308, 0, 0x10000000),
    "mount_setattr": (442, -100, b"/", 0, bytes(32), 32), "open_tree": (428, -100, b"/", 1), "fsopen": (430, b"tmpfs", 0),
    "fspick": (433, -100, b"/", 0), "move_mount": (429, -100, b"/", -100, b"/", 0), "pivot_root": (155, b".", b"."),
    "umount /proc": (166, b"/proc", 2), "umount /": (166, b"/", 2), "mount tmpfs": (165, b"none", b".", b"tmpfs", 0, 0),
    "mount proc": (165, b"none", b".", b"proc", 0, 0), "mount bind": (165, b"/", b".", None, 4096, 0), "remount": (165, None, b"/", None, 32 | 4096, 0),
    "mount sysfs": (165, b"none", b".", b"sysfs", 0, 0), "mount cgroup2": (165, b"none", b".", b"cgroup2", 0, 0), "mount overlay": (165, b"none", b".", b"overlay", 0, 0),
    "chroot": (161, b"."), "swapon": (167, b"swap", 0), "reboot": (169, 0xFEE1DEAD, 672274793, 0, 0),
    "sethostname": (170, b"@TOKEN@", 8), "setdomainname": (171, b"@TOKEN@", 8), "iopl": (172, 3), "ioperm": (173, 0x80, 1, 1),
    "init_module": (175, 0, 0, b""), "finit_module": (313, 0, b"", 0), "delete_module": (176, b"nothing", 2048),
    "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, 0, 0, 0, b"", 0), "acct": (163, b"acct"), "quotactl": (179, 0x800002 << 8, None, 0, 0),
    "syslog": (103, 3, bytes(64), 64), "settimeofday": (164, None, None), "clock_settime": (227, 0, struct.pack("QQ", int(time.time()), 0)),
    "adjtimex": (159, struct.pack("I", 1) + bytes(300)), "clock_adjtime": (305, 0, struct.pack("I", 1) + bytes(300)),
    "bpf map": (321, 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(100), 116), "bpf prog": (321, 5, bytes(120), 120), "perf": (298, struct.pack("II", 1, 112) + bytes(112), 0, -1, -1, 0),
    "userfaultfd": (323, 0), "userfaultfd user": (323, 1), "io_uring_setup": (425, 4, bytes(120)), "io_uring_enter": (426, 0, 0, 0, 0, 0), "io_uring_register": (427, 0, 0, 0, 0),
    "keyctl session": (250, 1, b"@TOKEN@"), "keyctl describe": (250, 6, -3, 0, 0), "add_key": (248, b"user", b"@TOKEN@", b"x", 1, -3), "request_key": (249, b"user", b"@TOKEN@", None, -3),
    "keyctl get persistent": (250, 22, -1, -3), "fanotify_init": (300, 0, 0), "fanotify_mark": (301, 0, 0, 0, 0, 0),
    "name_to_handle_at": (303, -100, b"/", struct.pack("II", 128, 0) + bytes(128), bytes(8), 0), "open_by_handle_at": (304, -100, struct.pack("II", 8, 1) + bytes(8), 0),
    "memfd_create": (319, b"@TOKEN@", 0), "memfd_secret": (447, 0), "personality no random": (135, 0x0040000), "personality exec": (135, 0x0400000),
    "modify_ldt": (154, 1, bytes(16), 16), "vhangup": (153,), "lookup_dcookie": (212, 0, 0, 0), "uselib": (134, b"x"), "remap_file_pages": (216, 0, 0, 0, 0, 0),
    "move_pages": (279, @PARENT@, 0, 0, 0, 0, 0), "migrate_pages": (256, @PARENT@, 0, 0, 0),
    "seccomp notify": (317, 1, 8, bytes(16)), "landlock": (444, None, 0, 1) if False else (101, 0, 0, 0, 0), "cachestat of the parent": (451, -1, 0, 0, 0),
    "clone3 user": (435, struct.pack("Q", 0x10000000) + bytes(80), 88), "clone3": (435, bytes(88), 88), "shmget": (29, 0, 4096, 0o1600), "msgget": (68, 0, 0o1600), "semget": (64, 0, 1, 0o1600),
    "mq_open": (240, b"@TOKEN@", 0o102, 0o600, None),
    "quotactl_fd": (443, 0, 0, 0, 0), "statmount": (457, bytes(24), bytes(64), 64, 0), "listmount": (458, struct.pack("IIQQ", 24, 0, 2**64 - 1, 0), bytes(64), 8, 0),
    "lsm_set_self_attr": (460, 100, bytes(32), 32, 0), "syscall 470": (470, 0), "syscall 1000": (1000, 0), "sysfs": (139, 3), "ustat": (136, 1, bytes(64)),
}
"""

ATTEMPTS = [
    Attempt(
        "forbidden calls",
        EVERY
        + """
for name, (number, *arguments) in CALLS.items():
    given = [ctypes.create_string_buffer(a, len(a) + 1) if isinstance(a, bytes) else a for a in arguments]
    result = _syscall(number, *given)
    if result >= 0: _escaped(f"{name} = {result}")
""",
        row="21 22",
        light=True,
    ),
    Attempt(
        "forbidden calls in a child and in a thread",
        EVERY
        + """
import threading
def all_of_them():
    for name, (number, *arguments) in CALLS.items():
        given = [ctypes.create_string_buffer(a, len(a) + 1) if isinstance(a, bytes) else a for a in arguments]
        result = _syscall(number, *given)
        if result >= 0: _escaped(f"{name} = {result}")
thread = threading.Thread(target=all_of_them); thread.start(); thread.join()
_in_child(all_of_them)
""",
        row="21 22",
    ),
    Attempt(
        "forbidden calls after exec",
        """
import subprocess
code = "import ctypes; l = ctypes.CDLL(None); print('left', l.syscall(272, 0x10000000), l.syscall(101, 0, 0, 0, 0), l.syscall(425, 4, bytes(120)), l.syscall(321, 0, bytes(120), 116))"
try: done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
except OSError as error: print(error); done = subprocess.CompletedProcess([], 1, "", "")
print(done.stdout, done.stderr[-300:])
if "left" in done.stdout and "left -1 -1 -1 -1" not in done.stdout: _escaped(done.stdout)
""",
        row="22",
    ),
    Attempt(
        "x32 numbers",
        """
def x32(): print([_syscall(0x40000000 + n, 0x10000000, 0, 0, 0) for n in (272, 101, 521, 539, 319, 425, 165)])
def tries():
    for number, arguments in ((272, (0x10000000,)), (521, (0, 0, 0, 0)), (165, (0, 0, 0, 0, 0)), (39, ()), (425, (4, 0))):
        result = _syscall(0x40000000 + number, *arguments)
        if result >= 0: _escaped(f"x32 call {number} = {result}")
_in_child(tries)
""",
        row="22",
        light=True,
    ),
    Attempt(
        "32-bit calls by int 0x80",
        r"""
import mmap
def machine_code(code, *arguments):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
def call32(eax, ebx=0):
    # push rbx; mov eax, n; mov ebx, n; xor ecx, ecx; xor edx, edx; int 0x80; pop rbx; cdqe; ret
    return b"\x53\xb8" + struct.pack("<I", eax) + b"\xbb" + struct.pack("<I", ebx) + b"\x31\xc9\x31\xd2\xcd\x80\x5b\x48\x98\xc3"
for name, number, argument in (("getpid", 20, 0), ("unshare", 310, 0x10000000), ("ptrace", 26, 0), ("setuid", 23, 0), ("getuid", 24, 0)):
    def one():
        result = machine_code(call32(number, argument))
        if result >= 0: _escaped(f"int 0x80 {name} = {result}")
    print(name, _in_child(one))
""",
        ends=(OK, ERROR),
        row="22",
        light=True,
    ),
    Attempt(
        "clone into namespaces",
        """
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x4000000, 0x8000000, 0x2000000, 0x7E020000, 0x10000000 | 0x100):
    result = _syscall(56, flag | 17, 0, 0, 0, 0)
    if result == 0: _escaped(f"clone({flag:#x}) made a child"); os._exit(0)
    if result > 0: os.waitpid(result, 0); _escaped(f"clone({flag:#x}) = {result}")
    result = _syscall(56, flag | 17 | (0xdead << 32), 0, 0, 0, 0)
    if result == 0: _escaped("clone with high bits made a child"); os._exit(0)
    if result > 0: os.waitpid(result, 0); _escaped("clone with high bits")
_denied("unshare", lambda: _libc.unshare(0x10000000) == 0 or 1 / 0)
for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"):
    for pid in ("self", "1", os.getppid(), @TRAINER@):
        try: fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError: continue
        if _syscall(308, fd, 0) >= 0: _escaped(f"setns into {name} of {pid}")
""",
        row="22",
        light=True,
    ),
    Attempt(
        "a namespace in a namespace, by programs",
        """
import subprocess
for command in (["unshare", "-Ur", "id"], ["unshare", "-m", "true"], ["nsenter", "-t", "1", "-a", "id"], ["bwrap", "--ro-bind", "/", "/", "true"], ["mount", "-t", "tmpfs", "x", "."],
                ["chroot", ".", "true"], ["capsh", "--print"], ["setpriv", "--reuid", "0", "id"], ["sysctl", "-w", "kernel.hostname=@TOKEN@"], ["hostname", "@TOKEN@"], ["dmesg"]):
    try: done = subprocess.run(command, capture_output=True, timeout=3, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired): continue
    if command[0] == "capsh": continue
    if done.returncode == 0: _escaped(f"{command}: {done.stdout[:100]!r}")
""",
        row="22",
    ),
    Attempt(
        "attach to processes",
        """
for pid in {os.getppid(), 1, @TRAINER@, @VICTIM@} - {os.getpid()}:
    local = ctypes.create_string_buffer(16)
    iov = struct.pack("QQ", ctypes.addressof(local), 16)
    for number in (310, 311):
        if _syscall(number, pid, iov, 1, iov, 1, 0) > 0: _escaped(f"memory of {pid}")
    if _syscall(101, 16, pid, 0, 0) >= 0: _escaped(f"attached to {pid}")
    if _syscall(101, 0x4206, pid, 0, 0) >= 0: _escaped(f"seized {pid}")
    for mode in ("rb", "r+b"):
        try: open(f"/proc/{pid}/mem", mode).close()
        except OSError: continue
        if pid in (@TRAINER@, @VICTIM@): _escaped(f"opened memory of {pid}")
""",
        row="21",
        light=True,
    ),
    Attempt(
        "one's own parent inside is out of reach",
        """
pid = os.getppid()
for mode in ("rb", "r+b"):
    try:
        file = open(f"/proc/{pid}/mem", mode, buffering=0)
        maps = open(f"/proc/{pid}/maps").read()
        start = int(next(l for l in maps.splitlines() if "[stack]" in l or "[heap]" in l).split("-")[0], 16)
        file.seek(start); file.read(8)
    except (OSError, StopIteration, ValueError): continue
    _escaped(f"memory of the parent, {mode}")
""",
        row="21",
    ),
    Attempt(
        "run what is in memory only",
        """
fd = _syscall(319, b"x", 0)
if fd >= 0:
    os.write(fd, b"#!/bin/sh\\necho RAN\\n")
    pid = os.fork()
    if pid == 0:
        _syscall(322, fd, b"", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000); os._exit(1)
    os.waitpid(pid, 0)
""",
    ),
    Attempt(
        "no core file appears on the machine",
        """
import resource
for value in (resource.RLIM_INFINITY, 1 << 20):
    try: resource.setrlimit(resource.RLIMIT_CORE, (value, value))
    except (ValueError, OSError): continue
    _escaped("core files may be written")
_libc.prctl(4, 1, 0, 0, 0)
os.kill(os.getpid(), signal.SIGSEGV)
""",
        ends=(ERROR, OK),
    ),
    Attempt(
        "raise one's limits",
        """
import resource
for name in ("AS", "NPROC", "NOFILE", "FSIZE", "CPU", "CORE", "MEMLOCK", "NICE", "RTPRIO", "SIGPENDING", "MSGQUEUE", "DATA", "STACK"):
    number = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(number)
    for value in (resource.RLIM_INFINITY, hard + 1 if hard >= 0 else -1):
        if value == hard: continue
        try: resource.setrlimit(number, (value, value))
        except (ValueError, OSError): continue
        _escaped(f"RLIMIT_{name} {hard} -> {value}")
for pid in (@TRAINER@, @VICTIM@, os.getppid()):
    if pid > 1 and _syscall(302, pid, 7, struct.pack("QQ", 16, 16), None) >= 0: _escaped(f"limits of {pid}")
    if pid > 1 and _syscall(302, pid, 7, None, ctypes.create_string_buffer(16)) >= 0: print("reads limits of", pid)
for flag in (1, 2):
    _libc.mlockall(flag)
""",
        light=True,
    ),
    Attempt(
        "priorities and processors",
        """
for f in (lambda: os.nice(-5), lambda: os.setpriority(os.PRIO_PROCESS, 0, -20), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)),
          lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))):
    _denied("priority", f)
for pid in (@TRAINER@, @VICTIM@, os.getppid()):
    if pid > 1:
        _denied("affinity of another", os.sched_setaffinity, pid, os.sched_getaffinity(0))
        _denied("priority of another", os.setpriority, os.PRIO_PROCESS, pid, 15)
        _denied("io priority of another", lambda: _syscall(251, 1, pid, (3 << 13)) >= 0 or 1 / 0)
_denied("io real time", lambda: _syscall(251, 1, 0, (1 << 13)) >= 0 or 1 / 0)
_denied("sched_setattr deadline", lambda: _syscall(314, 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**8, 10**8), 0) >= 0 or 1 / 0)
""",
        light=True,
    ),
    Attempt(
        "slow down everybody of the same user",
        """
for which in (os.PRIO_USER, os.PRIO_PGRP):
    for who in (0, os.getuid(), 65534, @UID@):
        try: os.setpriority(which, who, 17)
        except OSError as error: print(which, who, error)
for which in (2, 3):
    for who in (0, os.getuid(), @UID@):
        print(_syscall(251, which, who, (3 << 13)))
""",
        light=True,
    ),
    Attempt(
        "privileges of one's own process",
        """
for option, value in ((8, 1), (28, 0), (23, 21), (24, 1), (38, 0), (22, 0), (22, 1)):
    result = _libc.prctl(option, value, 0, 0, 0)
    if result == 0 and option in (28, 38): _escaped(f"prctl({option}, {value})")
for cap in range(0, 41):
    if _libc.prctl(47, 2, cap, 0, 0) == 0: _escaped(f"ambient capability {cap}")
header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("IIIIII", 0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0)
if _syscall(126, header, data) >= 0: _escaped("capset")
subreaper = _libc.prctl(36, 1, 0, 0, 0)
print("subreaper", subreaper)
""",
        ends=(OK, ERROR),
        light=True,
    ),
    Attempt(
        "keys",
        """
for keyring in (-1, -2, -3, -4, -5, -6, -7, -8):
    if _syscall(250, 0, keyring, 1) >= 0: _escaped(f"keyring {keyring}")
if _syscall(248, b"user", b"@TOKEN@", b"payload", 7, -4) >= 0: _escaped("add_key")
_unreadable("/proc/keys", "/proc/key-users")
""",
    ),
    Attempt(
        "System V memory of the machine",
        """
for number, arguments in ((29, (@SHM_KEY@, 0, 0)), (29, (@SHM_KEY@, 4096, 0o666)), (30, (@SHM_ID@, 0, 0)), (68, (@SHM_KEY@, 0o1666)), (64, (@SHM_KEY@, 1, 0o1666)), (31, (@SHM_ID@, 2, bytes(112)))):
    result = _syscall(number, *arguments)
    if result >= 0: _escaped(f"call {number} = {result}")
for name in ("shm", "msg", "sem"):
    try: lines = open(f"/proc/sysvipc/{name}").read().splitlines()[1:]
    except OSError: continue
    if lines: _escaped(f"/proc/sysvipc/{name}: {lines[0]}")
""",
        light=True,
    ),
    Attempt(
        "hostname",
        """
before = socket.gethostname()
for f in (lambda: socket.sethostname("@TOKEN@"), lambda: open("/proc/sys/kernel/hostname", "w").write("@TOKEN@")):
    _denied("hostname", f)
if before == "@HOSTNAME@": print("the machine's name is known")
""",
    ),
    Attempt(
        "clock of the machine",
        """
for number, arguments in ((227, (0, struct.pack("QQ", 0, 0))), (164, (struct.pack("QQ", 0, 0), None)), (305, (0, struct.pack("I", 0x100) + bytes(300)))):
    if _syscall(number, *arguments) >= 0: _escaped(f"call {number}")
_denied("time.clock_settime", time.clock_settime, time.CLOCK_REALTIME, 0)
_unwritable("/dev/rtc0", "/dev/rtc")
""",
        row="35",
        light=True,
    ),
    Attempt(
        "terminals",
        """
import fcntl
for fd in range(0, 10):
    for request, argument in ((0x5412, b"x"), (0x540E, 0), (0x541C, b"\\x0b"), (0x5423, struct.pack("i", 0)), (0x4B47, 0)):
        try: fcntl.ioctl(fd, request, argument)
        except (OSError, ValueError): continue
        _escaped(f"ioctl {request:#x} on {fd}")
    if os.isatty(fd) if fd < 3 else False: _escaped(f"{fd} is a terminal")
try: os.open("/dev/tty", os.O_RDWR); _escaped("/dev/tty")
except OSError: pass
""",
        light=True,
    ),
    Attempt(
        "unloved system calls with nonsense",
        """
import random
random.seed(5)
skip = {0, 1, 3, 7, 15, 23, 34, 35, 56, 57, 58, 59, 60, 61, 130, 162, 202, 219, 230, 231, 232, 247, 270, 271, 281, 322, 435, 441, 11, 12, 9, 10, 25, 28, 62, 112, 127, 128, 247, 449, 454, 455, 456, 37, 38, 13, 14, 131}
def fuzz():
    for _ in range(3000):
        number = random.randrange(0, 470)
        if number in skip: continue
        _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(random.choice((0, -1, 1, 4096, 2**31 - 1, random.getrandbits(12)))) for _ in range(6)])
print(_in_child(fuzz, 4))
""",
        ends=(OK, ERROR),
    ),
]

if platform.machine() != "x86_64":
    ATTEMPTS = [one for one in ATTEMPTS if "_syscall(" not in one.code and "x32" not in one.code]
