"""What hostile code may try in a sandbox. Each attempt says ESCAPED for whatever of it works.

An attempt is contained if it says no such thing, shows no secret, ends as it may, and leaves host and sandbox as they
were (`sandbox_world`). `@NAME@` in the code stands for something on the host: see `World.names`. Where an attempt would
do harm if it worked, it stops short of it: it opens and does not write, it asks and does not act.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from arpo.tools.sandbox.base import ExecLimits, ExecResult, ExecStatus

OK, ERROR, TIMEOUT, OOM = ExecStatus.OK, ExecStatus.ERROR, ExecStatus.TIMEOUT, ExecStatus.OOM
FLOOD = ExecStatus.OUTPUT_LIMIT

PRELUDE = r'''
import ctypes, errno, os, signal, socket, struct, sys, time
_libc = ctypes.CDLL(None, use_errno=True)
def _syscall(number, *arguments):
    """The result, or minus the error number."""
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = _libc.syscall(ctypes.c_long(number), *given)
    return -ctypes.get_errno() if result == -1 else result
def _escaped(what):
    os.write(1, f"ESCAPED {what}\n".encode())
def _denied(name, f, *arguments, **more):
    """Run it; whatever it returns, it was not to be had."""
    try:
        result = f(*arguments, **more)
    except (Exception, SystemExit) as error:
        return type(error).__name__
    _escaped(f"{name}: {str(result)[:200]!r}")
def _setsid():
    try: os.setsid()
    except OSError: pass
def _opens(path, flags=os.O_RDONLY):
    try:
        fd = os.open(path, flags)
    except OSError:
        return False
    os.close(fd)
    return True
def _unwritable(*paths):
    for path in paths:
        if _opens(path, os.O_WRONLY) or _opens(path, os.O_WRONLY | os.O_APPEND):
            _escaped(f"{path} opens for writing")
def _unreadable(*paths):
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read(100)
        except (OSError, ValueError):
            continue
        _escaped(f"{path} reads: {data!r}")
def _in_child(f, seconds=3):
    """Run it in a child; its exit status, or None if it did not end."""
    pid = os.fork()
    if pid == 0:
        try:
            f()
        finally:
            os._exit(0)
    for _ in range(int(seconds * 100)):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
'''

_USUAL = ExecLimits(wall_s=8.0, cpu_s=6.0, memory_mb=512)


@dataclass(frozen=True)
class Attempt:
    """One hostile program. `ends`: how it may end; `row`: of the list of escapes that every sandbox has to hold;
    `check`: something to say about the result, empty if it is fine; `light`: also run by the ordinary test suite;
    `after`: an attempt that has to be contained before this one is made; `rungs`: where it says anything.
    """

    name: str
    code: str
    ends: tuple[ExecStatus, ...] = (OK,)
    row: str = ""
    limits: ExecLimits = _USUAL
    check: Callable[[ExecResult], str] | None = None
    light: bool = False
    after: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    earlier: tuple[str, ...] = ()
    plain: bool = False
    """The code alone, without PRELUDE."""
    rungs: tuple[str, ...] = ("namespace", "landlock")

    def __str__(self) -> str:
        return self.name

    def program(self, names: dict[str, str]) -> str:
        code = self.code if self.plain else PRELUDE + self.code
        for name, value in names.items():
            code = code.replace(f"@{name}@", value)
        return code


def short(**more: object) -> ExecLimits:
    """Limits for what is to run into one."""
    return ExecLimits(**{"wall_s": 1.0, "cpu_s": 1.0, "memory_mb": 512, **more})  # type: ignore[arg-type]


def all_attempts() -> list[Attempt]:
    import sandbox_attempts_files
    import sandbox_attempts_kernel
    import sandbox_attempts_network
    import sandbox_attempts_output
    import sandbox_attempts_processes
    import sandbox_attempts_resources

    modules = (
        sandbox_attempts_files,
        sandbox_attempts_network,
        sandbox_attempts_kernel,
        sandbox_attempts_output,
        sandbox_attempts_processes,
        sandbox_attempts_resources,
    )
    found = [attempt for module in modules for attempt in module.ATTEMPTS]
    names = [attempt.name for attempt in found]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
    return found
