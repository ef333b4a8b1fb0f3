"""The Python tool in monty: what the model sees, and what its code cannot do."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.sandbox.monty import MontySandbox
from arpo.tools.sandbox.tool import PythonTool
from arpo.tools.sandbox.values import show_last_value
from arpo.tools.sessions import Session, Step
from arpo.tools.settings import PythonSettings
from arpo.tools.toolbox import ToolBox

OK, ERROR = ToolStatus.OK, ToolStatus.TOOL_ERROR


def monty(timeout: float = 20, quick: float = 0.05, **more) -> PythonTool:
    return PythonTool(MontySandbox(quick=quick), PythonSettings(backend="monty", timeout=timeout, **more))


@pytest.fixture(scope="module")
def tool():
    tool = monty()
    yield tool
    asyncio.run(tool.close())


@pytest.fixture(scope="module")
def hasty():
    tool = monty(timeout=0.4)
    yield tool
    asyncio.run(tool.close())


def run(tool: PythonTool, code: str, seed: int = 0) -> ToolResult:
    return asyncio.run(tool.call({"code": code}, ToolContext(seed=seed)))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(6*7)", "42"),
        ("6*7", "42"),
        ("print(1)\n'a'", "1\n'a'"),
        ("x = 1", "(no output)"),
        ("x = 1\nx", "1"),
        ("None", "(no output)"),
        ("print('')", "(no output)"),
        ('"é"; (1 +\n 2)  # three', "3"),
        ("5; 6;", "6"),
        ("a = 2\r\na * 2\r\n", "4"),
        ("for i in range(2): print(i)", "0\n1"),
        ("if True:\n    5", "(no output)"),
        ("(y := 4)", "4"),
        ("import math\nmath.sqrt(16)", "4.0"),
        ("print(1, end='')", "1"),
        ("10 > 9", "True"),
    ],
)
def test_output_as_in_a_notebook(tool, code, text):
    assert run(tool, code) == ToolResult(OK, text, empty=text == "(no output)")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("x = 1\nx/0", "ZeroDivisionError: division by zero (line 2)"),
        ("def f():\n    return 1/0\nf()", "ZeroDivisionError: division by zero (line 3)"),
        ("print(1)\nraise ValueError", "1\nValueError (line 2)"),
        ("x = (", "SyntaxError: unexpected EOF while parsing"),
        ("&lt;", "SyntaxError"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("10**5000", "ValueError: Exceeds the limit (4300 digits) for integer string conversion"),
        ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded (line 2)"),
        ("x = '\ud800'", "SyntaxError"),
        ("(" * 9000, "SyntaxError"),
    ],
)
def test_errors_are_shown_in_one_line(tool, code, text):
    result = run(tool, code)
    assert result.status is ERROR
    assert result.text.startswith(text)


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "import os\nos.listdir('/')",
        "import os\nos.environ['PATH']",
        "import os\nos.getenv('PATH') + ''",
        "import socket",
        "import subprocess",
        "import ctypes",
        "import urllib.request",
        "__import__('os').system('true')",
        "().__class__.__mro__",
        "open('/tmp/arpo-was-here', 'w').write('x')",
    ],
)
def test_no_files_no_network_no_processes(tool, code):
    assert run(tool, code).status is ERROR
    assert not os.path.exists("/tmp/arpo-was-here")


def test_calls_share_no_state(tool):
    run(tool, "secret = 5")
    assert run(tool, "secret").text.startswith("NameError")


@pytest.mark.parametrize("code", ["9**(10**9)", "a = [0] * (1 << 30)", "a = []\nwhile True: a.append('x' * 1000000)"])
def test_memory_limit(tool, code):
    assert run(tool, code) == ToolResult(ERROR, "MemoryError: more than 64 MiB used")


def test_a_small_value_with_an_endless_representation(tool):
    result = run(tool, "a = [0] * 1000; b = [a] * 1000; c = [b] * 1000\nc")
    assert result.status is ERROR
    assert result.text.endswith("MemoryError: more than 1 MiB printed")


def test_output_flood_is_cut_and_repeats(tool):
    first, second = (run(tool, "while True: print('x' * 100)") for _ in range(2))
    assert first == second
    assert first.text.endswith("\nMemoryError: more than 1 MiB printed")


@pytest.mark.parametrize(
    "code", ["while True: pass", "try:\n    while True: pass\nexcept BaseException: pass\n7", "sum(range(10**10))"]
)
def test_time_limit(hasty, code):
    started = time.perf_counter()
    assert run(hasty, code).status is ToolStatus.TIMEOUT
    assert 0.4 <= time.perf_counter() - started < 5.0


def test_sleep_takes_no_time(tool):
    started = time.perf_counter()
    assert run(tool, "import time\ntime.sleep(1000)\n1").text == "1"
    assert time.perf_counter() - started < 10.0


async def test_slow_code_leaves_the_event_loop_free(hasty):
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    result = await hasty.call({"code": "while True: pass"}, ToolContext())
    ticking.cancel()
    assert result.status is ToolStatus.TIMEOUT
    assert ticks >= 5


def test_slow_code_gives_the_same_result_as_quick_code(tool):
    code = "import random\nx = sum(range(600000))\nprint(random.random())\nx"
    impatient = monty(quick=0.001)
    patient = monty(quick=20)
    assert run(impatient, code, seed=4) == run(patient, code, seed=4)
    for one in (impatient, patient):
        asyncio.run(one.close())


def test_random_numbers_follow_the_seed_and_the_clock_stands(tool):
    draw = "import random\nrandom.random()"
    assert run(tool, draw, seed=1) == run(tool, draw, seed=1)
    assert run(tool, draw, seed=1) != run(tool, draw, seed=2)
    assert run(tool, "import datetime\nprint(datetime.date.today())").text == "2026-01-01"


def test_no_memory_addresses(tool):
    text = run(tool, "class A: pass\nprint(A())\nlambda x: x").text
    assert "0x" not in text
    assert "<function '<lambda>'>" in text


def _kill_worker(tool: PythonTool, number: int) -> None:
    with tool.sandbox._pool.checkout() as session:
        pid = session.worker_pid
    os.kill(pid, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_dead_worker_is_replaced_and_the_call_repeated(tool, number):
    _kill_worker(tool, number)
    assert run(tool, "1 + 1") == ToolResult(OK, "2")


class _Dying:
    """A pool whose workers always die: the first feed of every session is preceded by a SIGKILL."""

    def __init__(self, pool):
        self.pool = pool
        self.deaths = 0

    def checkout(self, **options):
        self.session = self.pool.checkout(**options)
        return self

    def __enter__(self):
        session = self.session.__enter__()
        os.kill(session.worker_pid, signal.SIGKILL)
        self.deaths += 1
        return session

    def __exit__(self, *exception):
        return self.session.__exit__(*exception)


def test_two_deaths_are_an_infrastructure_error(tool, monkeypatch):
    dying = _Dying(tool.sandbox._pool)
    monkeypatch.setattr(tool.sandbox, "_pool", dying)
    result = run(tool, "print(1)")
    assert (result.status, result.text, dying.deaths) == (ToolStatus.INFRA_ERROR, "", 2)
    assert "died twice" in result.data["error"]


def test_code_without_output_runs_once(tool, monkeypatch):
    runs = []
    once = MontySandbox._run_once
    monkeypatch.setattr(MontySandbox, "_run_once", lambda self, *rest: runs.append(1) or once(self, *rest))
    assert run(tool, "x = 1").text == "(no output)"
    assert len(runs) == 1


def test_a_sandbox_that_does_not_start(monkeypatch, tmp_path):
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "missing"))
    with pytest.raises(ToolSetupError, match=r"tool 'python': its sandbox does not start .*reinstall"):
        MontySandbox()


def test_unparsable_code_is_left_for_the_sandbox():
    for code in ("x = (", "x=1\0", "'\ud800'", "for"):
        assert show_last_value(code) == code


def children() -> set[int]:
    """Processes that this one has started and that are still there."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc on this machine")
async def test_calls_share_one_worker_process(tool):
    """What makes a call cost a fraction of a millisecond."""
    box = ToolBox([tool])
    await box.call("python", {"code": "0"}, ToolContext())
    before = children()
    for number in range(50):
        await box.call("python", {"code": f"{number} + 1"}, ToolContext())
    assert children() == before


def test_cells_of_a_trajectory_build_on_each_other():
    """Repeated from the seed of the first, whose value the model has seen; what failed half-way has done its half."""
    tool = monty(persistent=True)
    session = Session()

    def cell(code: str, seed: int) -> ToolResult:
        result = asyncio.run(tool.call({"code": code}, ToolContext(seed=seed, session=session)))
        session.append(Step(tool.environment.name, "python", {"code": code}, seed))
        return result

    first = cell("import random\nx = random.random()\nx", 3)
    cell("print('heard once')\nn = 5\n1/0", 4)
    assert cell("x", 5).text == first.text
    assert cell("n", 6).text == "5"
    assert (tool.stateless, tool.idempotent, tool.fork) == (False, True, "replay")
    assert "stay for the next call" in tool.description
    asyncio.run(tool.close())
