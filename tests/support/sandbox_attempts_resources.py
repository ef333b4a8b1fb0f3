# ruff: noqa: E501 - hostile programs keep their lines
"""Attempts to use up what everybody shares: memory, disk, descriptors, and the kernel's own tables."""

from sandbox_attempts import ERROR, OK, OOM, TIMEOUT, Attempt, short

FULL = (OOM, ERROR, OK, TIMEOUT)

ATTEMPTS = [
    Attempt("six gigabytes at once", "x = bytearray(6 << 30)", ends=(OOM, ERROR), row="14", plain=True, light=True),
    Attempt(
        "six gigabytes bit by bit",
        "a = []\nwhile True: a.append(bytearray(8 << 20))",
        ends=(OOM, ERROR),
        row="14",
        plain=True,
        light=True,
    ),
    Attempt(
        "six gigabytes of numpy",
        "import numpy\na = []\nwhile True: a.append(numpy.ones(1 << 20))",
        ends=(OOM, ERROR),
        row="14",
        plain=True,
    ),
    Attempt(
        "touched memory beyond the limit in one process",
        """
import mmap
maps = []
try:
    for _ in range(100):
        m = mmap.mmap(-1, 64 << 20)
        for at in range(0, 64 << 20, 4096): m[at] = 1
        maps.append(m)
except (OSError, MemoryError, ValueError): pass
if len(maps) * 64 > 700: _escaped(f"{len(maps) * 64} MiB")
""",
        ends=FULL,
        row="14",
    ),
    Attempt(
        "sixteen children with half a gigabyte each",
        """
for _ in range(16):
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        a = []
        for _ in range(50): a.append(bytearray(10 << 20)); a[-1][::4096] = b"x" * len(a[-1][::4096])
        time.sleep(5); os._exit(0)
time.sleep(6)
""",
        ends=(OOM, ERROR, OK),
        limits=short(wall_s=8.0, cpu_s=8.0, memory_mb=1024),
        row="14",
        light=True,
    ),
    Attempt(
        "children that share nothing and hide",
        """
for _ in range(12):
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        _setsid()
        if os.fork(): os._exit(0)
        a = []
        while True:
            try: a.append(bytearray(5 << 20))
            except MemoryError: time.sleep(0.1)
time.sleep(6)
""",
        ends=(OOM, ERROR, OK, TIMEOUT),
        limits=short(wall_s=7.0, cpu_s=7.0, memory_mb=600),
        row="14",
    ),
    Attempt(
        "shared memory of the run",
        """
import mmap
maps = []
try:
    while len(maps) < 40:
        m = mmap.mmap(-1, 50 << 20, mmap.MAP_SHARED)
        m.write(b"x" * (50 << 20)); maps.append(m)
        if os.fork() == 0:
            while True: time.sleep(1)
except (OSError, MemoryError, ValueError) as error: print(type(error))
if len(maps) * 50 > 1500: _escaped(f"{len(maps) * 50} MiB shared")
""",
        ends=FULL,
        row="14",
    ),
    Attempt(
        "shared memory that nobody maps",
        """
import mmap
made = 0
fds = []
try:
    for i in range(60):
        fd = _syscall(319, b"x", 0)
        if fd < 0: fd = os.open(f"/dev/shm/@TOKEN@{i}", os.O_RDWR | os.O_CREAT)
        for _ in range(50): os.write(fd, b"x" * (1 << 20))
        fds.append(fd); made += 50
except OSError as error: print(error)
if made > 700: _escaped(f"{made} MiB in files of memory")
""",
        ends=FULL,
        row="14 15",
        light=True,
    ),
    Attempt(
        "lock memory",
        """
import mmap
m = mmap.mmap(-1, 256 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(m))
if _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(256 << 20)) == 0: _escaped("256 MiB locked")
if _libc.mlockall(3) == 0: print("mlockall")
for advice in (100, 101, 12, 14, 15, 18, 20, 21): _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(1 << 20), advice)
""",
        ends=FULL,
    ),
    Attempt(
        "fill the disk",
        """
places = {os.getcwd(), "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), "/run", "/", "/dev"}
made = 0
for place in places:
    try:
        with open(f"{place}/@TOKEN@-fill", "wb", buffering=0) as file:
            while made < 1500: file.write(b"x" * (1 << 20)); made += 1
    except OSError as error: print(place, error.errno)
print(made, "MiB", flush=True)
if made > 300: _escaped(f"{made} MiB of files")
""",
        ends=FULL,
        row="15",
        light=True,
    ),
    Attempt(
        "fill the disk with many files",
        """
made = 0
try:
    for i in range(4000):
        with open(f"f{i}", "wb") as file: file.write(b"x" * (1 << 20))
        made += 1
        if made > 800: break
except OSError as error: print(error.errno)
print(made, flush=True)
if made > 300: _escaped(f"{made} MiB in files")
""",
        ends=FULL,
        row="15",
    ),
    Attempt(
        "sparse and preallocated files",
        """
for name, f in (("truncate", lambda fd: os.ftruncate(fd, 1 << 40)), ("fallocate", lambda fd: os.posix_fallocate(fd, 0, 2 << 30)), ("seek", lambda fd: os.pwrite(fd, b"x", 1 << 40))):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    try: f(fd)
    except OSError as error: print(name, error.errno); continue
    if os.fstat(fd).st_blocks * 512 > 300 << 20: _escaped(f"{name}: {os.fstat(fd).st_blocks * 512} bytes")
""",
        ends=FULL,
        row="15",
    ),
    Attempt(
        "use up inodes",
        """
made = 0
end = time.time() + 5
try:
    while made < 300000 and time.time() < end: os.close(os.open(f"i{made}", os.O_CREAT)); made += 1
except OSError as error: print(error.errno)
print(made, flush=True)
""",
        ends=FULL,
        row="15",
    ),
    Attempt(
        "deep directories and long names",
        """
depth = 0
end = time.time() + 3
try:
    while depth < 3000 and time.time() < end: os.mkdir("d" * 200); os.chdir("d" * 200); depth += 1
except OSError as error: print(error)
print(depth)
""",
        ends=FULL,
        row="15",
    ),
    Attempt(
        "use up descriptors",
        """
made = 0
try:
    while made < 200000: os.pipe(); made += 2
except OSError as error: print(error.errno)
print(made)
if made > 20000: _escaped(f"{made} descriptors")
""",
        ends=FULL,
        light=True,
    ),
    Attempt(
        "use up descriptors in many processes",
        """
for _ in range(30):
    try:
        if os.fork() == 0:
            try:
                while True: os.pipe()
            except OSError: time.sleep(60)
    except OSError: break
time.sleep(0.5)
""",
        ends=FULL,
    ),
    Attempt(
        "grown pipes",
        """
import fcntl
kept = 0
try:
    for _ in range(200):
        r, w = os.pipe()
        try: fcntl.fcntl(w, 1031, 1 << 20)
        except OSError: pass
        os.set_blocking(w, False)
        try:
            while True: kept += os.write(w, b"x" * 65536)
        except OSError: pass
except OSError: pass
print(kept >> 20, "MiB in pipes")
if kept > 100 << 20: _escaped(f"{kept >> 20} MiB in pipes")
""",
        ends=FULL,
    ),
    Attempt(
        "memory in sockets",
        """
kept, pairs = 0, []
try:
    for _ in range(400):
        a, b = socket.socketpair(); pairs.append((a, b)); a.setblocking(False)
        for s in (a, b):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF): s.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
        try:
            while True: kept += a.send(b"x" * 65536)
        except OSError: pass
except OSError as error: print(error)
print(kept >> 20, "MiB in sockets")
if kept > 600 << 20: _escaped(f"{kept >> 20} MiB in sockets")
""",
        ends=FULL,
    ),
    Attempt(
        "memory in sockets of many processes",
        """
r, w = os.pipe()
def fill():
    kept, pairs = 0, []
    try:
        while True:
            a, b = socket.socketpair(); pairs.append((a, b))
            for s in (a, b):
                s.setblocking(False)
                try:
                    while True: kept += s.send(b"x" * 65536)
                except OSError: pass
    except OSError: pass
    os.write(w, struct.pack("Q", kept)); time.sleep(30)
for _ in range(40):
    try:
        if os.fork() == 0: fill()
    except OSError: break
total = 0
end = time.time() + 5
os.set_blocking(r, False)
while time.time() < end:
    try: total += struct.unpack("Q", os.read(r, 8))[0]
    except OSError: time.sleep(0.05)
    if total > 600 << 20: _escaped(f"{total >> 20} MiB in sockets"); break
print(total >> 20, "MiB in sockets")
""",
        ends=FULL,
        limits=short(wall_s=15.0, cpu_s=15.0),
    ),
    Attempt(
        "watches, timers, event descriptors",
        """
import select
made = {}
def count(name, f, most=100000):
    made[name] = 0
    try:
        while made[name] < most: f(); made[name] += 1
    except (OSError, ZeroDivisionError): pass
count("inotify", lambda: 1 / (_libc.inotify_init1(0) >= 0), 5000)
count("epoll", select.epoll, 5000)
count("timers", lambda: 1 / (_syscall(222, 0, None, bytes(8)) >= 0), 200000)
count("eventfd", lambda: os.eventfd(0), 5000)
count("signals", lambda: os.kill(os.getpid(), 0) or 1 / (_syscall(129, os.getpid(), 40, struct.pack("iii", 40, 0, -1) + bytes(116)) >= 0), 200000) if signal.pthread_sigmask(signal.SIG_BLOCK, {40}) is not None else 0
print(made)
""",
        ends=FULL,
    ),
    Attempt(
        "many memory maps",
        """
import mmap
maps = []
try:
    while len(maps) < 200000: maps.append(mmap.mmap(-1, 4096))
except (OSError, MemoryError, ValueError): pass
print(len(maps))
""",
        ends=FULL,
        limits=short(wall_s=5.0, cpu_s=5.0),
    ),
    Attempt(
        "page tables",
        """
import mmap
made = 0
try:
    for _ in range(40):
        m = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        for at in range(0, 4 << 30, 2 << 20): m[at]
        made += 1
except (OSError, MemoryError, ValueError): pass
print(made)
if made > 10: _escaped(f"{made * 4} GiB of addresses")
""",
        ends=FULL,
    ),
    Attempt(
        "spin on every processor",
        """
for _ in range(16):
    try:
        if os.fork() == 0:
            _setsid()
            while True: pass
    except OSError: break
while True: pass
""",
        ends=(TIMEOUT,),
        limits=short(wall_s=1.5, cpu_s=10.0),
        light=True,
    ),
    Attempt(
        "flush everything to disk, again and again",
        "end = time.time() + 1\nwhile time.time() < end: os.sync()",
        ends=FULL,
        limits=short(wall_s=4.0),
    ),
    Attempt(
        "huge pages",
        """
import mmap
try: mmap.mmap(-1, 64 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000); print("huge")
except (OSError, ValueError) as error: print(error)
""",
        ends=FULL,
    ),
    Attempt(
        "collapse on the way out",
        "import os\na = bytearray(300 << 20)\nfor _ in range(6):\n    try:\n        if os.fork() == 0: a[::4096] = b'y' * len(a[::4096]); os._exit(0)\n    except OSError: break\nfor _ in range(6):\n    try: os.wait()\n    except OSError: break",
        ends=FULL,
        plain=True,
    ),
]
