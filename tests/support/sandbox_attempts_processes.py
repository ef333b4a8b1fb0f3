# ruff: noqa: E501 - hostile programs keep their lines
"""Attempts on processes: killing, stopping, outliving, and whatever else one process may do to another."""

from sandbox_attempts import ERROR, OK, TIMEOUT, Attempt, short

ANY = (OK, ERROR, TIMEOUT)

ATTEMPTS = [
    Attempt(
        "signals that harm nobody, to everybody",
        """
# SIGURG is ignored by default; the victim on the host counts it
for target in (-1, 0, os.getppid(), -os.getpgrp(), @TRAINER@, -@TRAINER@, @VICTIM@, -@VICTIM@, 1, -1):
    try: os.kill(target, signal.SIGURG)
    except OSError as error: print(target, error.errno)
for f in (lambda: os.killpg(@VICTIM@, signal.SIGURG), lambda: os.killpg(os.getpgid(os.getppid()), signal.SIGURG), lambda: os.kill(@TRAINER@, 0)):
    try: f()
    except (OSError, OverflowError) as error: print(error)
    else: print("accepted")
try: os.kill(@VICTIM@, 0)
except OSError: pass
else:
    if "@VICTIM@" not in (str(os.getpid()), str(os.getppid())) and not @OWN_PROCESSES@: _escaped("the victim may be signalled")
print("still here")
""",
        row="5",
        ends=ANY,
        light=True,
    ),
    Attempt(
        "signals by other calls",
        """
import threading
info = struct.pack("iii", signal.SIGURG, 0, -1) + bytes(116)
for pid in (@VICTIM@, @TRAINER@):
    for number, arguments in ((62, (pid, 23)), (200, (pid, 23)), (234, (pid, pid, 23)), (129, (pid, 23, info)), (297, (pid, pid, 23, info))):
        if _syscall(number, *arguments) >= 0 and not @OWN_PROCESSES@: _escaped(f"call {number} to {pid}")
    fd = _syscall(434, pid, 0)
    if fd >= 0:
        if _syscall(424, fd, 23, None, 0) >= 0 and not @OWN_PROCESSES@: _escaped("pidfd_send_signal")
        if _syscall(438, fd, 0, 0) >= 0: _escaped("pidfd_getfd")
# signals that the kernel sends on one's behalf
import fcntl
r, w = os.pipe()
for owner in (@VICTIM@, -@VICTIM@, @TRAINER@):
    try:
        fcntl.fcntl(r, fcntl.F_SETOWN, owner)
        fcntl.fcntl(r, 10, signal.SIGURG)     # F_SETSIG
        fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        os.write(w, b"x"); os.read(r, 1)
    except OSError as error: print(owner, error)
for kind in (0, 1, 2):
    try:
        fcntl.fcntl(r, 15, struct.pack("ii", kind, @VICTIM@))   # F_SETOWN_EX
        os.write(w, b"x"); os.read(r, 1)
    except OSError as error: print(error)
""",
        row="5",
        ends=ANY,
        light=True,
    ),
    Attempt(
        "kill the parent",
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.1)\nprint('still here')",
        row="5",
        ends=ANY,
        after="signals that harm nobody, to everybody",
        light=True,
    ),
    Attempt(
        "kill the group",
        "os.kill(0, signal.SIGKILL)\nprint('still here')",
        row="5",
        ends=ANY,
        after="signals that harm nobody, to everybody",
        light=True,
    ),
    Attempt(
        "kill everybody",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(-1, signal.SIGTERM)\ntime.sleep(0.05)\nos.kill(-1, signal.SIGKILL)\nprint('still here')",
        row="5",
        ends=ANY,
        after="signals that harm nobody, to everybody",
        light=True,
    ),
    Attempt(
        "kill everybody from a new session",
        """
if os.fork() == 0:
    _setsid()
    if os.fork() == 0:
        for pid in (0, -1, 1, os.getppid(), -os.getpgrp()):
            try: os.kill(pid, signal.SIGKILL)
            except OSError: pass
    os._exit(0)
os.wait()
time.sleep(0.2)
print("still here")
""",
        row="5",
        ends=ANY,
        after="signals that harm nobody, to everybody",
    ),
    Attempt(
        "kill every number",
        """
for pid in range(2, 40000):
    if pid in (os.getpid(), @TRAINER@): continue
    try: os.kill(pid, 0)
    except OSError: continue
    if not @OWN_PROCESSES@ and pid != os.getppid(): _escaped(f"process {pid} may be signalled")
""",
        row="5",
        ends=ANY,
    ),
    Attempt(
        "stop the parent and the first process",
        """
for pid in (os.getppid(), 1):
    try: os.kill(pid, signal.SIGSTOP)
    except OSError as error: print(error)
time.sleep(0.2)
print("still here")
""",
        row="5",
        ends=ANY,
        limits=short(wall_s=3.0),
        after="signals that harm nobody, to everybody",
        light=True,
    ),
    Attempt(
        "stop oneself",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        ends=ANY,
        limits=short(),
        row="17",
        light=True,
    ),
    Attempt(
        "stop the whole group",
        "os.kill(0, signal.SIGSTOP)\nprint('still here')",
        ends=ANY,
        limits=short(),
        after="signals that harm nobody, to everybody",
    ),
    Attempt(
        "ignore every signal",
        """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
""",
        ends=(TIMEOUT,),
        limits=short(),
        row="17",
        light=True,
    ),
    Attempt(
        "catch the CPU limit and go on",
        """
def again(*_):
    while True:
        try:
            while True: pass
        except BaseException: pass
for number in (signal.SIGXCPU, signal.SIGTERM, signal.SIGALRM, signal.SIGINT): signal.signal(number, again)
again()
""",
        ends=(TIMEOUT,),
        limits=short(wall_s=6.0, cpu_s=1.0),
        row="17",
        light=True,
    ),
    Attempt(
        "burn CPU in children one after another",
        """
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.5
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()
""",
        ends=(TIMEOUT,),
        limits=short(wall_s=6.0, cpu_s=1.0),
        row="17",
    ),
    Attempt(
        "daemon",
        """
if os.fork() == 0:
    _setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _libc.prctl(15, b"@COMM@", 0, 0, 0)
        os.closerange(0, 256)
        time.sleep(60)
    os._exit(0)
os.wait()
print("left")
""",
        row="19",
        light=True,
    ),
    Attempt(
        "daemon that keeps the pipes",
        """
if os.fork() == 0:
    _setsid()
    if os.fork() == 0:
        _libc.prctl(15, b"@COMM@", 0, 0, 0)
        time.sleep(60)
    os._exit(0)
os.wait()
print("left")
""",
        row="19",
        light=True,
    ),
    Attempt(
        "daemons that multiply while they die",
        """
if os.fork() == 0:
    _setsid()
    _libc.prctl(15, b"@COMM@", 0, 0, 0)
    while True:
        try:
            if os.fork(): os._exit(0)
        except OSError: pass
print("left")
""",
        row="19",
        ends=ANY,
    ),
    Attempt(
        "daemons with sessions of their own",
        """
for _ in range(20):
    try:
        if os.fork() == 0:
            _setsid(); _libc.prctl(15, b"@COMM@", 0, 0, 0)
            for number in range(1, 65):
                try: signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError): pass
            while True: time.sleep(60)
    except OSError: break
os._exit(0)
""",
        row="19",
        ends=ANY,
        light=True,
    ),
    Attempt(
        "daemon by clone with no signal and vfork",
        """
for flags in (0, 0x4000, 0x8000):   # no exit signal, CLONE_VFORK, CLONE_PARENT
    pid = _syscall(56, flags, 0, 0, 0, 0)
    if pid == 0:
        if flags == 0x4000: os._exit(0)
        _libc.prctl(15, b"@COMM@", 0, 0, 0)
        time.sleep(60); os._exit(0)
print("left")
""",
        row="19",
        ends=ANY,
    ),
    Attempt(
        "a sibling of the harness by CLONE_PARENT",
        """
pid = _syscall(56, 0x8000 | 17, 0, 0, 0, 0)
if pid == 0:
    _libc.prctl(15, b"@COMM@", 0, 0, 0)
    end = time.time() + 30
    while time.time() < end: time.sleep(1)
    os._exit(0)
print("cloned", pid)
""",
        row="19",
        ends=ANY,
    ),
    Attempt(
        "outlive by exec",
        """
import subprocess
for command in (["sleep", "61.@TOKEN_NUMBER@"], [sys.executable, "-c", "import time; time.sleep(60) # @TOKEN@"], ["nohup", "sleep", "61.@TOKEN_NUMBER@"], ["setsid", "-f", "sleep", "61.@TOKEN_NUMBER@"], ["sh", "-c", "sleep 61.@TOKEN_NUMBER@ &"]):
    try: subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError: pass
print("left")
""",
        row="19",
        ends=ANY,
        light=True,
    ),
    Attempt(
        "traced and stopped children",
        """
for how in (signal.SIGSTOP, signal.SIGTSTP):
    if os.fork() == 0:
        _setsid(); _libc.prctl(15, b"@COMM@", 0, 0, 0)
        os.kill(os.getpid(), how); time.sleep(60); os._exit(0)
time.sleep(0.1)
""",
        row="19",
        ends=ANY,
    ),
    Attempt(
        "zombies",
        """
for _ in range(200):
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: break
print("left")
""",
        ends=ANY,
    ),
    Attempt(
        "fork bomb",
        """
end = time.time() + 3
made = 0
while made < 5000 and time.time() < end:
    try: pid = os.fork()
    except OSError as error: print("refused", error.errno); break
    if pid == 0: time.sleep(60); os._exit(0)
    made += 1
print("made", made, flush=True)
if made > 200: _escaped(f"{made} processes")
""",
        row="12",
        ends=ANY,
        light=True,
    ),
    Attempt(
        "fork bomb that doubles",
        """
end = time.time() + 2
while time.time() < end:
    try: os.fork()
    except OSError: time.sleep(0.001)
""",
        row="12",
        ends=ANY,
        limits=short(wall_s=4.0, cpu_s=4.0),
    ),
    Attempt(
        "fork bomb that ignores its death",
        """
def bomb():
    while True:
        try:
            if os.fork() == 0: _setsid()
        except BaseException: pass
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
bomb()
""",
        row="12",
        ends=ANY,
        limits=short(wall_s=2.0, cpu_s=2.0),
    ),
    Attempt(
        "thread bomb",
        """
import threading
threads = []
try:
    while len(threads) < 5000:
        t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start(); threads.append(t)
except (RuntimeError, MemoryError): pass
print("made", len(threads), flush=True)
if len(threads) > 200: _escaped(f"{len(threads)} threads")
os._exit(0)
""",
        row="12",
        ends=ANY,
        light=True,
    ),
    Attempt(
        "vfork and exec bomb",
        """
import subprocess
made = []
try:
    while len(made) < 2000: made.append(subprocess.Popen(["sleep", "61.@TOKEN_NUMBER@"]))
except OSError as error: print(error)
print("made", len(made), flush=True)
if len(made) > 200: _escaped(f"{len(made)} processes")
""",
        row="12",
        ends=ANY,
    ),
    Attempt(
        "multiprocessing works or fails cleanly",
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
        ends=ANY,
    ),
    Attempt(
        "fake clock",
        """
import datetime
time.time = time.monotonic = time.perf_counter = time.sleep = lambda *a: 0
signal.setitimer(signal.ITIMER_REAL, 0)
signal.alarm(0)
class D(datetime.datetime):
    @classmethod
    def now(cls, tz=None): return cls(1970, 1, 1)
datetime.datetime = D
while True: pass
""",
        ends=(TIMEOUT,),
        limits=short(),
        row="35",
        light=True,
    ),
    Attempt(
        "block timers and alarms",
        """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU})
signal.set_wakeup_fd(-1)
while True: pass
""",
        ends=(TIMEOUT,),
        limits=short(),
        row="35",
    ),
    Attempt("endless loop", "while True: pass", ends=(TIMEOUT,), limits=short(), row="16", plain=True, light=True),
    Attempt(
        "endless sleep",
        "import time\ntime.sleep(1000)",
        ends=(TIMEOUT,),
        limits=short(),
        row="16",
        plain=True,
        light=True,
    ),
    Attempt("endless number", "9 ** (10 ** 9)", ends=(TIMEOUT, ERROR), limits=short(), row="16", plain=True),
    Attempt(
        "endless pattern",
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        ends=(TIMEOUT,),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt("endless sum", "sum(range(10**12))", ends=(TIMEOUT,), limits=short(), row="16", plain=True),
    Attempt(
        "endless sympy",
        "import sympy\nsympy.factorint(2**1061 - 1)",
        ends=(TIMEOUT,),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt(
        "endless input", "import sys\nprint(len(sys.stdin.read()))", ends=ANY, limits=short(), row="16", plain=True
    ),
    Attempt(
        "endless wait for a lock",
        "import threading\nl = threading.Lock(); l.acquire(); l.acquire()",
        ends=(TIMEOUT,),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt(
        "endless end",
        "import atexit, threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()",
        ends=(TIMEOUT, OK, ERROR),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt(
        "endless finalizer",
        "class A:\n    def __del__(self):\n        while True: pass\na = A()",
        ends=(TIMEOUT, OK),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt(
        "catch everything",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ends=(TIMEOUT,),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt(
        "threads that hold the lock of the interpreter",
        "import threading\nfor _ in range(8): threading.Thread(target=lambda: pow(3, 10**8, 10**50000), daemon=True).start()\nwhile True: pass",
        ends=(TIMEOUT,),
        limits=short(),
        row="16",
        plain=True,
    ),
    Attempt(
        "session leaders and groups",
        """
for f in (_setsid, lambda: os.setpgid(0, @TRAINER@), lambda: os.setpgid(@VICTIM@, 0), lambda: os.tcsetpgrp(0, os.getpgrp()), lambda: os.setpgid(0, os.getpgid(os.getppid()))):
    try: print(f())
    except OSError as error: print(error)
if os.getpgrp() == @TRAINER_GROUP@ or os.getsid(0) == @TRAINER_SESSION@:
    if not @OWN_PROCESSES@: _escaped("in the trainer's group or session")
for get in (os.getpgid, os.getsid, os.sched_getaffinity):
    for pid in (@TRAINER@, @VICTIM@):
        try: got = get(pid)
        except OSError: continue
        if not @OWN_PROCESSES@: print(get.__name__, pid, got)
""",
        ends=ANY,
    ),
    Attempt(
        "wait for somebody else's children",
        """
for pid in (-1, @VICTIM@):
    try: print(os.waitpid(pid, os.WNOHANG))
    except OSError as error: print(error)
for kind, which in ((1, @VICTIM@), (0, 0), (2, 0)):
    try: print(os.waitid(kind, which, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except OSError as error: print(error)
""",
        ends=ANY,
    ),
]
