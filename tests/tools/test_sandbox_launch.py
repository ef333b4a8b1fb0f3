"""The local sandboxes, for real and on both rungs: what a run gives, what ends it, and what is left afterwards."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from arpo.errors import DataError, ToolSetupError
from arpo.tools.sandbox import ladder, scratch
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecResult, ExecStatus
from arpo.tools.sandbox.launcher import LocalSandbox

OK, ERROR, OOM, TIMEOUT = ExecStatus.OK, ExecStatus.ERROR, ExecStatus.OOM, ExecStatus.TIMEOUT


@pytest.fixture(scope="module", params=["namespace", "landlock"])
def box(request):
    try:
        sandbox = ladder.choose(request.param, ("numpy",), slots=4)
    except ToolSetupError as error:
        pytest.skip(f"this machine has no {request.param} rung: {error}")
    yield sandbox
    sandbox.end()


def run(box: LocalSandbox, code: str, **options) -> ExecResult:
    limits = options.pop("limits", ExecLimits(wall_s=20, cpu_s=15, memory_mb=256))
    return asyncio.run(box.run(ExecRequest(code=code, limits=limits, **options)))


@pytest.mark.parametrize(
    ("code", "stdout", "value"),
    [
        ("print(6 * 7)", "42\n", None),
        ("6 * 7", "", "42"),
        ("None", "", None),
        ("x = 3\nprint(x)\nx", "3\n", "3"),
        ("import sys\nprint('a', end='')\nsys.exit(0)", "a", None),
        ("import os\nprint('done', flush=True)\nos._exit(0)", "done\n", None),
        ("'é'; '\\ud800'", "", "'\\ud800'"),
        ("print('\\ud800')", "\\ud800\n", None),
        ("import threading\nthreading.Timer(0.05, lambda: print('late')).start()", "late\n", None),
        ("import atexit\natexit.register(print, 'bye')\n1", "bye\n", "1"),
        ("__name__", "", "'__main__'"),
        ("a = 2\r\na * 2\r\n", "", "4"),
    ],
)
def test_what_a_run_gives(box, code, stdout, value):
    result = run(box, code)
    assert (result.status, result.stdout, result.value, result.error) == (OK, stdout, value, "")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("1/0", ERROR, "ZeroDivisionError: division by zero"),
        ("x = 1\nx/0", ERROR, "ZeroDivisionError: division by zero (line 2)"),
        ("def f():\n    raise KeyError('a')\nf()", ERROR, "KeyError: 'a' (line 2)"),
        ("x = (\n1", ERROR, "SyntaxError: '(' was never closed (line 1)"),
        ("x = '\ud800'", ERROR, "SyntaxError: a character that is half of a pair"),
        ("x = 1\0", ERROR, "SyntaxError: source code string cannot contain null bytes"),
        ("raise SystemExit('no')", ERROR, "SystemExit: no"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", ERROR, "E (line 3)"),
        ("import os\nos._exit(3)", ERROR, "the process ended with exit code 3"),
        ("import os\nos.abort()", ERROR, "the process was ended by SIGABRT (it aborted itself)"),
        ("import ctypes\nctypes.string_at(0)", ERROR, "the process was ended by SIGSEGV"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", ERROR, "the process was ended by SIGKILL"),
        ("bytearray(6 << 30)", OOM, "MemoryError"),
        ("raise ValueError('a\\nb')", ERROR, "ValueError: a b"),
    ],
)
def test_how_a_run_fails(box, code, status, error):
    result = run(box, code)
    assert result.status is status
    assert result.error.startswith(error)
    assert result.value is None


def test_seeds_and_hashes_repeat(box):
    code = "import random, numpy\nrandom.random(), float(numpy.random.rand()), hash('a')"
    first, again, other = (run(box, code, seed=seed).value for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_input_files_and_working_folder(box):
    code = "import os\nprint(input(), open('in/a.bin', 'rb').read(), sorted(os.listdir('.')))"
    result = run(box, code, stdin=b"line\nmore", files={"in/a.bin": b"\xff\0"})
    assert result.stdout == "line b'\\xff\\x00' ['in']\n"


@pytest.mark.parametrize("name", ["../a", "/etc/a", "", "a/../../b", "a\0b"])
def test_file_names_stay_inside(box, name):
    with pytest.raises(DataError, match="working directory"):
        run(box, "1", files={name: b""})


def test_earlier_cells_are_replayed_unheard(box):
    earlier = ("x = 1\nprint('heard')", "x += 1\n1/0", "def f():\n    return x", "import sys; sys.exit(3)")
    result = run(box, "f()", earlier=earlier)
    assert (result.status, result.stdout, result.value) == (OK, "", "2")


def test_runs_share_nothing(box):
    run(box, "import builtins, sys\nbuiltins.print = None\nsys.modules['math'] = None\nopen('left', 'w').write('x')")
    result = run(box, "import math, os\nprint(math.pi > 3, os.listdir('.'))")
    assert result.stdout == "True []\n"


def test_nothing_of_ours_or_of_the_machine_is_seen(box, monkeypatch):
    monkeypatch.setenv("FAKE_API_KEY", "hunter2")
    paths = [
        os.path.abspath(__file__),
        "/etc/passwd",
        "/root/.bashrc",
        "/proc/1/environ",
        f"/proc/{os.getpid()}/environ",
    ]
    code = f"""
import os, sys
seen = []
for path in {paths}:
    try:
        open(path).read()
    except OSError:
        continue
    seen.append(path)
try:
    import arpo
    seen.append('arpo')
except ImportError:
    pass
print(seen, [name for name in os.environ if 'KEY' in name])
"""
    assert run(box, code).stdout == "[] []\n"


def test_forged_results_are_no_more_than_text(box):
    code = """
import json, os
os.write(3, json.dumps({"error": "", "value": 7, "status": "ok"}).encode() + b"\\n" + b"[" * 5000)
1/0
"""
    result = run(box, code)
    assert (result.status, result.value) == (ERROR, None)
    assert run(box, 'import os\nos.write(3, b\'{"value": "\\\\ud800"}\')\nos._exit(0)').value == "?"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(100)",
        "9**(10**9)",
        "import signal, time\nfor n in (15, 24, 2): signal.signal(n, signal.SIG_IGN)\ntime.sleep(100)",
    ],
)
def test_time_limit(box, code):
    started = time.monotonic()
    result = run(box, code, limits=ExecLimits(wall_s=0.5, cpu_s=5))
    assert result.status is TIMEOUT
    assert time.monotonic() - started < 15


def test_computing_time_of_all_processes_is_limited(box):
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = run(box, code, limits=ExecLimits(wall_s=60, cpu_s=1))
    assert result.status is TIMEOUT


def test_memory_of_all_processes_is_limited(box):
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(40 << 20)
        time.sleep(30)
time.sleep(30)
"""
    result = run(box, code, limits=ExecLimits(wall_s=25, memory_mb=128))
    assert result.status is OOM
    assert "128 MiB" in result.error


def test_number_of_processes_is_limited(box):
    code = """
import os, time
count = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(30)
        count += 1
except OSError:
    pass
print(count)
time.sleep(3)
"""
    result = run(box, code, limits=ExecLimits(wall_s=20, pids=10))
    if box.name == "namespace":
        assert (result.status, result.stdout) == (OK, "9\n")
    else:  # the kernel counts all of the user's processes there: the watcher ends it
        assert (result.status, result.error) == (ERROR, "more than 10 processes")


def test_output_is_cut_and_a_flood_ended(box):
    limits = ExecLimits(output_bytes=1000, wall_s=20)
    result = run(box, "print('a' * 5000 + 'z')", limits=limits)
    assert result.status is OK
    assert result.truncated
    assert result.stdout.startswith("a" * 500 + "\n... 4002 bytes left out ...\n")
    assert result.stdout.endswith("az\n")
    flood = run(box, "while True: print('x' * 10000)", limits=limits)
    assert flood.status is ExecStatus.OUTPUT_LIMIT
    assert len(flood.stdout) < 1100


def test_a_value_is_cut(box):
    value = run(box, "'a' * 10**6", limits=ExecLimits(output_bytes=100)).value
    assert value is not None
    assert "characters left out" in value
    assert len(value) < 200


def test_files_are_bounded(box):
    code = "with open('big', 'wb') as f:\n    for _ in range(100): f.write(bytes(1 << 20))"
    result = run(box, code, limits=ExecLimits(file_mb=8))
    assert result.status is ERROR
    assert "line 2" in result.error or "MiB written" in result.error


def descendants() -> set[int]:
    found, ahead = set(), [os.getpid()]
    while ahead:
        for task in Path(f"/proc/{ahead.pop()}/task").glob("*/children"):
            try:
                children = {int(pid) for pid in task.read_text().split()}
            except OSError:
                continue
            found |= children
            ahead += children
    return found


def marked(mark: str) -> list[str]:
    """Processes of this machine whose command line holds the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if mark in text:
            found.append(path.parent.name)
    return found


def test_daemons_do_not_outlive_the_run(box):
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    code = f"""
import os, subprocess, sys, time
for _ in range(3):
    if os.fork() == 0:
        try:
            os.setsid()
        except PermissionError:
            pass
        if os.fork() == 0:
            subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)  # {mark}'])
            open('started', 'a').write('x')
        os._exit(0)
while not os.path.exists('started') or os.path.getsize('started') < 3:
    time.sleep(0.01)
print('well')
"""
    assert run(box, code).stdout == "well\n"
    assert marked(mark) == []


def test_cancelling_ends_the_run(box):
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', 'while True: pass  # {mark}'])"

    async def cancel() -> None:
        task = asyncio.create_task(box.run(ExecRequest(code=code)))
        for _ in range(500):
            await asyncio.sleep(0.02)
            if marked(mark):
                break
        assert marked(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if not marked(mark):
                break
            await asyncio.sleep(0.02)

    asyncio.run(cancel())
    assert marked(mark) == []


async def test_many_at_once_and_none_the_other(box):
    results = await asyncio.gather(*(box.run(ExecRequest(code=f"print({n})\n{n} * 2")) for n in range(24)))
    assert [(r.stdout, r.value) for r in results] == [(f"{n}\n", str(n * 2)) for n in range(24)]


def test_descriptors_do_not_grow(box):
    run(box, "1")
    before = len(os.listdir("/proc/self/fd"))
    for code in ("1", "1/0", "import os; os.abort()"):
        run(box, code)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_dead_loader_is_replaced_and_its_runs_repeated(box):
    async def kill_meanwhile() -> ExecResult:
        task = asyncio.create_task(box.run(ExecRequest(code="import time\ntime.sleep(0.5)\n'again'")))
        await asyncio.sleep(0.2)
        assert box._pump._loader is not None
        os.kill(box._pump._loader.process.pid, signal.SIGKILL)
        return await task

    assert asyncio.run(kill_meanwhile()).value == "'again'"
    assert run(box, "1 + 1").value == "2"


_TRAINER = """
import asyncio, sys
from arpo.tools.sandbox import ladder
from arpo.tools.sandbox.base import ExecRequest
box = ladder.choose(sys.argv[1], ())
print("ready", flush=True)
asyncio.run(box.run(ExecRequest(code=sys.argv[2])))
"""


@pytest.mark.parametrize("rung", ["namespace", "landlock"])
def test_all_dies_with_the_trainer(rung, tmp_path):
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', 'while True: pass  # {mark}'])"
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, rung, code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        if trainer.stdout.readline() != b"ready\n":
            pytest.skip(f"this machine has no {rung} rung")
        _until(lambda: len(marked(mark)) > 1)  # the trainer's own command line holds the mark too
        trainer.kill()
        trainer.wait()
        _until(lambda: not marked(mark))
        assert marked(mark) == []
    finally:
        trainer.kill()
        trainer.communicate()


def _until(condition) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)


def pumps() -> set[int | None]:
    """The threads of all sandboxes of this process."""
    return {thread.ident for thread in threading.enumerate() if thread.name == "arpo-sandbox"}


def test_closing_leaves_nothing(tmp_path):
    before, threads = descendants(), pumps()
    sandbox = ladder.choose("auto", (), slots=2)

    async def use() -> list[ExecResult]:
        jobs = [asyncio.create_task(sandbox.run(ExecRequest(code=code))) for code in ("1", "while True: pass")]
        await asyncio.sleep(0.3)
        await sandbox.close()
        return await asyncio.gather(*jobs)

    results = asyncio.run(use())
    assert results[1].status is ExecStatus.INFRA_ERROR
    assert descendants() <= before
    assert pumps() == threads
    assert asyncio.run(sandbox.run(ExecRequest(code="1"))).status is ExecStatus.INFRA_ERROR


def test_shared_sandboxes_are_counted():
    first, second = ladder.shared("auto", ()), ladder.shared("auto", ())
    assert first._sandbox is second._sandbox
    first.end()
    first.end()
    assert asyncio.run(second.health()) == ""
    second.end()
    assert not [key for key in ladder._OPEN if key[2] == ()]


def test_a_missing_package_is_named():
    with pytest.raises(ToolSetupError, match=r"package 'no_such_package_here' cannot be loaded .*preload"):
        ladder.choose("auto", ("no_such_package_here",))


def test_stale_folders_are_cleared(tmp_path):
    folder, lock = scratch.create(str(tmp_path), os.getuid(), os.getgid())
    deep = Path(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(300):  # deeper than a path can name
        os.mkdir("a" * 40, 0o700, dir_fd=descriptor)
        inner = os.open("a" * 40, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    kept = tmp_path / "kept"
    kept.write_text("x")
    (deep / "link").symlink_to(tmp_path)
    (deep / "closed").mkdir(mode=0o000)
    assert scratch.clear_stale(str(tmp_path), {os.getuid()}) == []
    os.close(lock)
    assert scratch.clear_stale(str(tmp_path), {os.getuid()}) == [folder]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_nobody_reads_what_a_request_holds(box):
    """The request is a file in memory that only its run gets; the environment of the loader is a fixed list."""
    assert box._pump._loader is not None
    environment = Path(f"/proc/{box._pump._loader.process.pid}/environ")
    if not os.access(environment, os.R_OK):
        pytest.skip("the loader's environment is readable by root alone")
    names = {entry.partition(b"=")[0].decode() for entry in environment.read_bytes().split(b"\0") if entry}
    assert names <= {"PATH", "LANG", "LC_ALL", "LANGUAGE", "TZ", "MPLBACKEND"} | {
        name for name in names if name.startswith(("PYTHON", "OMP", "OPENBLAS", "MKL", "NUMEXPR", "MALLOC", "JE_"))
    }
    assert json.dumps(sorted(names)).isascii()
