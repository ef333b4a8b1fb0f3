# ruff: noqa: E501 - hostile programs keep their lines
"""Attempts on files: reading what is secret, writing what lasts, and what comes back out as a file."""

from sandbox_attempts import ERROR, OK, Attempt

ATTEMPTS = [
    Attempt(
        "read secrets by path",
        """
_unreadable("@SECRET_FILE@", "@DATASET@", "/etc/passwd", "/etc/shadow", "/etc/hostname", "/root/.bashrc",
            "/root/.ssh/id_rsa", "/home/user/.ssh/id_rsa", "@HOME@/.bashrc", "@HOME@/.netrc", "@HOME@/.config",
            "@REPOSITORY@/pyproject.toml", "@REPOSITORY@/.git/config", "/var/log/dpkg.log", "/etc/hosts",
            "/etc/machine-id", "/etc/ssl/openssl.cnf", "/etc/resolv.conf", "/proc/cmdline")
""",
        row="1",
        light=True,
    ),
    Attempt(
        "read secrets by a detour",
        r"""
import glob, io, linecache, mmap, pathlib, shutil, subprocess
for path in ("@SECRET_FILE@", "/etc/passwd"):
    for prefix in ("", "/.", "//", "/proc/self/root", "/proc/self/cwd/../../../../../../..", "/proc/1/root",
                   "/proc/thread-self/root", "/usr/../", "/tmp/..", "/dev/fd/0/../../..", "/proc/self/task/1/root"):
        _unreadable(prefix + path)
    _denied("pathlib", pathlib.Path(path).read_text)
    _denied("copy", shutil.copy, path, "copy")
    _denied("link", os.link, path, "hard")
    os.path.lexists("soft") or os.symlink(path, "soft")
    _unreadable("soft")
    if linecache.getlines(path): _escaped("linecache")
    _denied("cat", lambda: subprocess.run(["cat", path], capture_output=True, check=True).stdout)
    _denied("openat2", lambda: 1 / (_syscall(437, -100, path.encode(), struct.pack("QQQ", 0, 0, 0), 24) >= 0))
    _denied("sqlite", lambda: __import__("sqlite3").connect(f"file:{path}?mode=ro", uri=True).execute("select 1 from sqlite_master"))
if glob.glob("/home/*/.ssh/*") or glob.glob("/root/*"): _escaped("glob of homes")
""",
        row="1",
    ),
    Attempt(
        "list the machine",
        """
for path in ("/root", "/home", "/work", "/mnt", "/media", "/srv", "/boot", "/var", "/run", "/opt", "/sys/class",
             "@REPOSITORY@", "@SECRET_FOLDER@"):
    try: found = os.listdir(path)
    except OSError: continue
    allowed = ["@ALLOWED_TREE@".split(), os.getcwd().split("/")]
    if found and not all(name in sum(allowed, []) for name in found): _escaped(f"{path}: {found[:5]}")
""",
        row="2",
        light=True,
    ),
    Attempt(
        "list processes",
        """
mine = {str(os.getpid()), str(os.getppid()), "1", "self", "thread-self"}
try: seen = [name for name in os.listdir("/proc") if name.isdigit()]
except OSError: seen = []
others = [name for name in seen if name not in mine]
for pid in ("@TRAINER@", "@VICTIM@"):
    if pid in others and pid not in mine: _escaped(f"process {pid} is listed")
for pid in [*others[:50], "@TRAINER@", "@VICTIM@", str(os.getppid())]:
    if int(pid) in (os.getpid(), 1): continue
    for name in ("cmdline", "environ", "maps", "status", "stat", "io", "mem", "auxv", "syscall", "stack"):
        try: data = open(f"/proc/{pid}/{name}", "rb").read(200)
        except OSError: continue
        if pid in ("@TRAINER@", "@VICTIM@") and pid not in mine: _escaped(f"/proc/{pid}/{name}: {data[:60]!r}")
""",
        row="2",
    ),
    Attempt(
        "environment",
        """
import subprocess
bad = [k for k in os.environ if any(w in k for w in ("KEY", "TOKEN", "SECRET", "PASS", "AWS", "PYTEST", "VIRTUAL"))]
if bad: _escaped(str(bad))
print(dict(os.environ))
try: print(subprocess.run(["env"], capture_output=True, text=True).stdout)
except OSError as error: print(error)
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
i = 0
while environ[i]: print(environ[i]); i += 1
""",
        row="3",
        light=True,
    ),
    Attempt(
        "environ and memory of every process",
        """
for pid in [*range(1, 40), os.getppid(), @TRAINER@, @VICTIM@]:
    for name in ("environ", "cmdline", "mem", "maps"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file: data = file.read(1 << 20) if name != "mem" else b""
        except OSError: continue
        print(pid, name, data[:4000])
        if name == "mem" and pid != os.getpid():
            # whatever is mapped there: the harness must not have anything to hide in it
            for line in open(f"/proc/{pid}/maps"):
                a, b = (int(x, 16) for x in line.split()[0].split("-"))
                if "[heap]" in line or "[stack]" in line:
                    with open(f"/proc/{pid}/mem", "rb") as m:
                        m.seek(a)
                        if b"@SECRET_HALF@" + b"@OTHER_HALF@" in m.read(b - a): _escaped("secret in memory")
""",
        row="4",
    ),
    Attempt(
        "own memory holds no secret of the host",
        """
half, other = b"@SECRET_HALF@", b"@OTHER_HALF@"
looked = 0
try: lines = open("/proc/self/maps").readlines()
except OSError: lines = []   # then the memory of others is out of reach as well
for line in lines:
    fields = line.split()
    a, b = (int(x, 16) for x in fields[0].split("-"))
    if "r" not in fields[1] or "[v" in line or (len(fields) > 5 and fields[5].startswith("/")): continue
    with open("/proc/self/mem", "rb", buffering=0) as m:
        for start in range(a, b, 1 << 20):
            try: m.seek(start); data = m.read(min((1 << 20) + 64, b - start))
            except (OSError, ValueError, OverflowError): break
            looked += len(data)
            at = data.find(half)
            while at >= 0:
                if data[at + len(half):at + len(half) + len(other)] == other: _escaped("the secret is in memory that was inherited"); break
                at = data.find(half, at + 1)
print(looked >> 20, "MiB looked at")
""",
        row="4",
    ),
    Attempt(
        "write outside the working directory",
        r"""
import site, sysconfig
places = ["/", "/usr", "/usr/bin", "/usr/lib", "/bin", "/lib", "/etc", "/root", "/home", "/var", "/opt", "/work", "/run",
          "/dev", "/proc", "/sys", "/mnt", "@REPOSITORY@", "@HOME@", "@SECRET_FOLDER@", os.path.dirname(os.__file__),
          sysconfig.get_paths()["purelib"], sysconfig.get_paths()["scripts"], sys.prefix, sys.base_prefix]
for place in places:
    path = f"{place}/@TOKEN@"
    try:
        with open(path, "w") as file: file.write("x")
    except OSError: pass
    else:
        os.unlink(path)
        if not os.path.samefile(place, os.getcwd()): _escaped(f"wrote into {place}")
    for f in (os.mkdir, lambda p: os.symlink("x", p), lambda p: os.mkfifo(p)):
        try: f(path)
        except OSError: continue
        (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
        if not os.path.samefile(place, os.getcwd()): _escaped(f"made something in {place}")
""",
        row="11",
        light=True,
    ),
    Attempt(
        "change programs and libraries",
        """
import numpy
_unwritable("/bin/sh", "/bin/bash", "/usr/bin/env", sys.executable, os.path.realpath(sys.executable), os.__file__,
            numpy.__file__, numpy._core._multiarray_umath.__file__, "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/passwd",
            "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2")
for path in (os.__file__, numpy.__file__, sys.executable, "/bin/sh"):
    for name, f in (("chmod", lambda p: os.chmod(p, 0o777)), ("utime", lambda p: os.utime(p, (1, 1))),
                    ("chown", lambda p: os.chown(p, 1, 1)), ("unlink", os.unlink), ("truncate", lambda p: os.truncate(p, 10**9)),
                    ("rename", lambda p: os.rename(p, p + "@TOKEN@")), ("setxattr", lambda p: os.setxattr(p, "user.a", b"b"))):
        if os.path.lexists(path): _denied(f"{name} {path}", f, path)
for name in sorted(os.listdir(os.path.dirname(numpy.__file__)))[:20]:
    _unwritable(os.path.join(os.path.dirname(numpy.__file__), name))
""",
        row="11",
        light=True,
    ),
    Attempt(
        "start-up hooks for later runs",
        """
import site, sysconfig
lib = sysconfig.get_paths()["purelib"]
hooks = [f"{lib}/@TOKEN@.pth", f"{lib}/sitecustomize.py", f"{lib}/usercustomize.py", f"{os.path.dirname(os.__file__)}/sitecustomize.py",
         site.getusersitepackages() + "/usercustomize.py", os.path.expanduser("~/.pythonrc.py"), f"{sys.prefix}/pyvenv.cfg",
         f"{lib}/__pycache__/@TOKEN@.pyc", f"{os.path.dirname(os.__file__)}/__pycache__/random.cpython-311.pyc", "/etc/pythonstart"]
for hook in hooks:
    try:
        os.makedirs(os.path.dirname(hook), exist_ok=True)
        with open(hook, "w") as file: file.write("print('PWNED @TOKEN@')")
    except OSError: continue
    print("could write", hook)
for name in ("random.py", "json.py", "numpy.py", "sitecustomize.py"):
    for place in (os.getcwd(), "/tmp", os.path.expanduser("~")):
        try: open(os.path.join(place, name), "w").write("print('PWNED @TOKEN@')")
        except OSError: pass
os.environ["PYTHONSTARTUP"] = os.environ["LD_PRELOAD"] = "/tmp/@TOKEN@"
sys.path.insert(0, "/tmp")
""",
        row="11",
        light=True,
    ),
    Attempt(
        "leave files for the next run",
        """
for place in (os.getcwd(), "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), "/run", "/dev/mqueue", "/"):
    for kind in ("@TOKEN@-left", ".@TOKEN@-left"):
        try: open(os.path.join(place, kind), "w").write("left")
        except OSError: pass
""",
        row="11",
        light=True,
    ),
    Attempt(
        "find files of an earlier run",
        """
for place in (os.getcwd(), "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), "/run", "/dev/mqueue", "/"):
    try: names = os.listdir(place)
    except OSError: continue
    left = [name for name in names if "@TOKEN@" in name]
    if left: _escaped(f"{place}: {left}")
""",
        after="leave files for the next run",
        light=True,
    ),
    Attempt(
        "shared memory files and queues",
        """
from multiprocessing import shared_memory
_denied("shm of the host", lambda: bytes(shared_memory.SharedMemory("@SHM_NAME@").buf[:20]))
_unreadable("/dev/shm/@SHM_NAME@")
try: names = os.listdir("/dev/shm")
except OSError: names = []
if "@SHM_NAME@" in names: _escaped("the host's /dev/shm is listed")
""",
        light=True,
    ),
    Attempt(
        "devices",
        """
import glob
_unreadable("/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/kvm", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/fuse",
            "/dev/tty", "/dev/console", "/dev/tty0", "/dev/ptmx", "/dev/vsock", "/dev/vhost-vsock", "/dev/net/tun",
            "/dev/loop-control", "/dev/userfaultfd", "/dev/cpu/0/msr", "/dev/hwrng", "/dev/rtc0", "/dev/watchdog",
            "/dev/uinput", "/dev/nvidia0", "/dev/nvidiactl")
_unwritable("/dev/kmsg", "/dev/vda", "/dev/mem", "/dev/tty", "/dev/console", "/dev/ptmx")
for kind, number in ((0o020000, os.makedev(1, 1)), (0o060000, os.makedev(254, 0)), (0o020000, os.makedev(1, 3))):
    _denied("mknod", os.mknod, "node", kind | 0o666, number)
if not os.urandom(8) or open("/dev/null").read() != "": print("no /dev/null")
for name in glob.glob("/dev/pts/*"):
    if name != "/dev/pts/ptmx": _unwritable(name)
""",
        light=True,
    ),
    Attempt(
        "kernel's file systems",
        """
_unwritable("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
            "/proc/sys/kernel/modprobe", "/proc/sys/kernel/sysrq", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/randomize_va_space",
            "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/ns_last_pid", "/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/pid_max",
            "/proc/irq/0/smp_affinity", "/proc/acpi/wakeup", "/proc/mtrr", "/proc/sys/kernel/panic", "/sys/power/state",
            "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/module/kernel/parameters/panic",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs",
            "/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/memory/release_agent",
            "/sys/fs/cgroup/systemd/cgroup.procs", "/sys/kernel/debug/sched_features", "/sys/kernel/security/apparmor/.replace")
for path, what in (("/proc/sys/kernel/core_pattern", "core.@TOKEN@"), ("/proc/sysrq-trigger", "h"), ("/proc/sys/kernel/hostname", "@TOKEN@")):
    try:
        with open(path, "w") as file: file.write(what)
    except OSError: continue
    _escaped(f"wrote {path}")
_unreadable("/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/keys", "/proc/1/environ" if os.getpid() > 2 and os.getppid() > 2 else "/proc/kcore",
            "/sys/kernel/debug/x", "/sys/firmware/dmi/tables/DMI", "/sys/kernel/security/lsm", "/proc/sched_debug", "/proc/timer_list")
for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"):
    _denied(f"mkdir in {path}", os.mkdir, path + "/@TOKEN@")
""",
        row="23",
        light=True,
    ),
    Attempt(
        "own entries below /proc",
        """
for name, what in (("oom_score_adj", "-1000"), ("oom_score_adj", "-999"), ("oom_adj", "-17"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1"),
                   ("setgroups", "allow"), ("loginuid", "0"), ("timens_offsets", "monotonic 100 0"), ("projid_map", "0 0 1"),
                   ("attr/current", "unconfined"), ("attr/exec", "unconfined"), ("coredump_filter", "0x33"), ("timerslack_ns", "1"),
                   ("make-it-fail", "1"), ("sched", "0"), ("autogroup", "-20")):
    try:
        with open(f"/proc/self/{name}", "w") as file: file.write(what)
    except OSError: continue
    if name not in ("coredump_filter", "timerslack_ns"): _escaped(f"wrote {what} into {name}")
try: status = open("/proc/self/status").read()
except OSError: status = ""
for line in status.splitlines():
    if line.startswith(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")) and int(line.split()[1], 16): _escaped(line)
    if line.startswith("NoNewPrivs") and line.split()[1] != "1": _escaped(line)
    if line.startswith("Seccomp:") and line.split()[1] != "2": _escaped(line)
    if line.startswith("Groups:") and [g for g in line.split()[1:] if g in ("0", "27", "4", "24", "999")]: _escaped(line)
""",
        row="23",
        light=True,
    ),
    Attempt(
        "no descriptor of the host is open",
        """
import stat
for fd in range(3, 1024):
    try: info = os.fstat(fd)
    except OSError: continue
    kind = stat.S_IFMT(info.st_mode)
    try: target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError: target = "?"
    print(fd, oct(kind), target)
    if stat.S_ISDIR(kind) or stat.S_ISREG(kind) and "memfd" not in target or stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        _escaped(f"fd {fd} is {target}")
    if stat.S_ISSOCK(kind):
        import socket as s
        one = s.socket(fileno=os.dup(fd))
        if one.family not in (s.AF_UNIX,): _escaped(f"fd {fd} is a socket of family {one.family}")
""",
        light=True,
    ),
    Attempt(
        "out through descriptors",
        """
for fd in range(16):
    for tail in ("", "/..", "/../..", "/../../../etc/passwd", "/../../../../@SECRET_FILE@"):
        path = f"/proc/self/fd/{fd}{tail}"
        try: fd2 = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        except OSError: fd2 = None
        if fd2 is not None:
            for up in ("../../../../../..", "."):
                try: names = os.listdir(os.open(up, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd2))
                except OSError: continue
                if "work" in names or "home" in names and "root" in names and "boot" in names: _escaped(f"{path}/{up}: {names[:8]}")
        _unreadable(path + "/etc/passwd") if tail else 0
for flag in (0o10000000, 0o10000000 | os.O_NOFOLLOW):  # O_PATH
    try: fd = os.open("/..", flag)
    except OSError: continue
    _unreadable(f"/proc/self/fd/{fd}/@SECRET_FILE@", f"/proc/self/fd/{fd}/etc/passwd")
_denied("handle", lambda: 1 / (_syscall(303, -100, b"/", ctypes.create_string_buffer(struct.pack("II", 128, 0), 200), ctypes.byref(ctypes.c_int()), 0) >= 0))
root = os.open("/", os.O_RDONLY)
_denied("chroot", os.chroot, os.getcwd())
os.chdir("..") if os.access("..", os.X_OK) else 0
""",
        ends=(OK, ERROR),
    ),
    Attempt(
        "escape from a chroot of one's own",
        """
os.makedirs("jail", exist_ok=True)
try: root = os.open("/", os.O_RDONLY)
except OSError as error: print(error)
_denied("chroot", os.chroot, "jail")
""",
    ),
    Attempt(
        "set-id programs and file capabilities",
        """
import glob, stat, subprocess
found = [p for d in ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/lib/openssh") for p in glob.glob(d + "/*") if os.path.isfile(p) and os.stat(p).st_mode & 0o6000]
print(found[:10])
for path in found:
    if os.path.basename(path) in ("su", "sudo", "mount", "newgrp", "passwd", "ping"):
        done = subprocess.run([path, "--version" if "mount" in path else "-c", "id"], capture_output=True, stdin=subprocess.DEVNULL)
        if b"uid=0(root)" in done.stdout and os.getuid(): _escaped(f"{path}: {done.stdout}")
open("setid", "wb").write(open("/bin/true", "rb").read() if os.path.exists("/bin/true") else b"#!/bin/sh\\n")
try: os.chmod("setid", 0o6755)
except OSError: pass
for f in (lambda: os.setuid(0), lambda: os.seteuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setfsuid(0) if hasattr(os, "setfsuid") else 1 / 0):
    try: f()
    except (OSError, ZeroDivisionError): continue
    if 0 in os.getresuid() + os.getresgid(): _escaped(f"became {os.getresuid()}")
_denied("setcap", os.setxattr, "setid", "security.capability", struct.pack("<IIIII", 0x2000001, 0x80, 0, 0, 0))
""",
        ends=(OK, ERROR),
    ),
    Attempt(
        "preloads and loader tricks",
        """
import subprocess
open("evil.py", "w").write("print('hi')")
env = {"LD_PRELOAD": os.getcwd() + "/x.so", "LD_LIBRARY_PATH": os.getcwd(), "PYTHONPATH": os.getcwd(), "PYTHONINSPECT": "1", "BASH_ENV": "@SECRET_FILE@"}
if os.path.exists("/bin/sh"):
    done = subprocess.run(["/bin/sh", "-c", "cat @SECRET_FILE@; . @SECRET_FILE@; exec 3<>/dev/tcp/127.0.0.1/@PORT@"], env=env, capture_output=True)
    print(done.stdout, done.stderr)
""",
        ends=(OK, ERROR),
        light=True,
    ),
    Attempt(
        "overwrite a running library through memory",
        """
import mmap
done = 0
for line in open("/proc/self/maps"):
    fields = line.split()
    if len(fields) > 5 and fields[5].endswith(".so") and "x" in fields[1]:
        path, address = fields[5], int(fields[0].split("-")[0], 16)
        try:
            before = open(path, "rb").read(64)
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(address + 32); memory.write(b"\\x90" * 4)   # a private copy at the most
        except OSError: pass
        if open(path, "rb").read(64) != before: _escaped(f"{path} changed")
        done += 1
        if done > 3: break
try:
    with open(os.__file__, "r+b") as file: mmap.mmap(file.fileno(), 10); _escaped("mapped for writing")
except OSError: pass
with open(os.__file__, "rb") as file:
    for prot in (mmap.PROT_READ | mmap.PROT_WRITE,):
        _denied("shared writable map", mmap.mmap, file.fileno(), 10, mmap.MAP_SHARED, prot)
""",
        ends=(OK, ERROR),
    ),
    Attempt(
        "dirty pages of a read-only file through a pipe",
        """
fd = os.open(os.__file__, os.O_RDONLY)
r, w = os.pipe()
os.write(w, b"x" * 65536); os.read(r, 65536)
offset = ctypes.c_longlong(4)
_libc.splice(fd, ctypes.byref(offset), w, None, ctypes.c_size_t(1), 0)
try: os.write(w, b"@TOKEN@")
except OSError: pass
if b"@TOKEN@" in open(os.__file__, "rb").read(200): _escaped("the page cache of a library was written")
""",
    ),
    Attempt(
        "files given to a run stay in its directory",
        "print(sorted(os.listdir('.')), open('a/b.txt').read())",
        files={"a/b.txt": b"given"},
        check=lambda result: "" if "given" in result.stdout else "the given file is not there",
        light=True,
    ),
    Attempt(
        "harness objects within reach",
        """
import gc, inspect, types
names = []
frame = sys._getframe()
while frame is not None:
    names.append((frame.f_code.co_filename, frame.f_code.co_name))
    for key, value in {**frame.f_globals, **frame.f_locals}.items():
        if isinstance(value, (str, bytes)) and "@SECRET_HALF@" + "@OTHER_HALF@" in str(value): _escaped(f"{key} in a frame")
    frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, dict) and len(thing) < 2000:
        for key in list(thing)[:2000]:
            if isinstance(key, str) and key.lower() in ("gold", "answer_key", "fake_api_key", "reference_answer"): _escaped(f"{key} in memory")
heavy = [m for m in sys.modules if m.split(".")[0] in ("torch", "transformers", "pytest", "_pytest", "pydantic_monty")]
if heavy: _escaped(f"modules of the host: {heavy[:5]}")
print(names)
""",
        row="34",
        light=True,
    ),
]
