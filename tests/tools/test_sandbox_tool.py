"""The Python tool in this machine's own sandbox, from its settings: what the model sees, seeds, cells, and facts."""

import asyncio
import json
import logging

import pytest

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus, TransientError
from arpo.tools.registry import build
from arpo.tools.sandbox import ladder
from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus, SandboxCaps
from arpo.tools.sandbox.tool import PythonTool
from arpo.tools.sessions import Session, Step
from arpo.tools.settings import PythonSettings
from arpo.tools.toolbox import Limit, ToolBox

OK, ERROR = ToolStatus.OK, ToolStatus.TOOL_ERROR


@pytest.fixture(scope="module")
def box():
    box = build([PythonSettings(preload=("numpy",), timeout=20)])
    yield box
    asyncio.run(box.close())


def run(box: ToolBox, code: str, seed: int = 0, **more) -> ToolResult:
    return asyncio.run(box.call("python", {"code": code}, ToolContext(seed=seed, **more)))


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print(6*7)", OK, "42"),
        ("print(1)\n'a'", OK, "1\n'a'"),
        ("x = 1", OK, "(no output)"),
        ("print(1, end='')\n2", OK, "1\n2"),
        ("a = 2\r\na * 2\r\n", OK, "4"),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)\n3", OK, "out\nerr\n3"),
        ("import numpy as np\nnp.arange(4).reshape(2, 2)", OK, "array([[0, 1],\n       [2, 3]])"),
        ("class A: pass\nA()", OK, "<__main__.A object>"),
        ("1/0", ERROR, "ZeroDivisionError: division by zero"),
        ("print(1)\nraise ValueError", ERROR, "1\nValueError (line 2)"),
        ("x = (", ERROR, "SyntaxError: '(' was never closed"),
        ("open('/etc/passwd')", ERROR, None),
        ("import os\nprint(5, flush=True)\nos._exit(3)", ERROR, None),
        ("bytearray(6 << 30)", ERROR, None),
    ],
)
def test_what_the_model_sees(box, code, status, text):
    result = run(box, code)
    assert result.status is status
    assert text is None or result.text == text
    assert result.text
    assert result.empty == (result.text == "(no output)")


def test_time_out(box):
    slow = PythonTool(box.tools[0].sandbox, PythonSettings(timeout=0.3))
    tools = ToolBox([slow], {"python": Limit(timeout=0.3)})
    result = run(tools, "while True: pass")
    assert (result.status, result.text) == (ToolStatus.TIMEOUT, "Timed out after 0.3 s.")
    assert tools.stats["python"].abandoned == 0


def test_random_numbers_follow_the_seed(box):
    draw = "import random, numpy\n(random.random(), float(numpy.random.rand()), hash('a'))"
    assert run(box, draw, seed=1).text == run(box, draw, seed=1).text
    assert run(box, draw, seed=1).text != run(box, draw, seed=2).text


def test_cells_of_a_trajectory_build_on_each_other_and_branches_do_not(box):
    tool = PythonTool(box.tools[0].sandbox, PythonSettings(persistent=True, preload=("numpy",)))
    session = Session()

    def cell(session: Session, code: str, seed: int) -> str:
        result = asyncio.run(tool.call({"code": code}, ToolContext(seed=seed, session=session)))
        session.append(Step(tool.environment.name, "python", {"code": code}, seed))
        return result.text

    first = cell(session, "import random\nprint('once')\nx = random.random()\nx", 3)
    assert cell(session, "n = 5\n1/0", 4) == "ZeroDivisionError: division by zero (line 2)"
    branch = session.fork()
    assert cell(session, "n += 1\nx", 5) == first.splitlines()[1]
    assert [cell(one, "n", 6) for one in (session, branch)] == ["6", "5"]


def test_facts_for_the_run_card(box):
    facts = json.loads(json.dumps(box.tools[0].facts()))
    assert (facts["asked_for"], facts["isolation"]) == ("auto", facts["backend"])
    assert facts["packages"] == ["numpy"]
    assert facts["versions"]["numpy"]
    assert (facts["limits"]["memory_mb"], facts["persistent"]) == (1024, False)


def test_where_no_sandbox_works(monkeypatch, caplog):
    def refuse(*arguments, **more):
        raise ToolSetupError("no sandbox works here; sysctl -w kernel.x=1")

    monkeypatch.setattr(ladder, "shared", refuse)
    with pytest.raises(ToolSetupError, match="sysctl"):
        build([PythonSettings()])
    with caplog.at_level(logging.WARNING):
        tools = build([PythonSettings(fallback="monty")])
    assert "runs in monty, as `fallback` says: no sandbox works here" in caplog.text
    assert run(tools, "6 * 7").text == "42"
    facts = tools.tools[0].facts()
    assert (facts["asked_for"], facts["backend"], facts["limits"]["memory_mb"]) == ("auto", "monty", 64)
    asyncio.run(tools.close())


class Scripted:
    """A sandbox that answers what it is told to, or nothing."""

    name = "scripted"
    caps = SandboxCaps(isolation="remote", files=True, network=True, processes=True, memory="total")

    def __init__(self, answer: ExecResult | None) -> None:
        self.answer, self.cancelled = answer, 0

    async def run(self, request: ExecRequest) -> ExecResult:
        if self.answer is None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return self.answer

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (ExecResult(status=ExecStatus.INFRA_ERROR, error="gone"), ToolStatus.INFRA_ERROR, ""),
        (ExecResult(status=ExecStatus.KILLED, stdout="half"), ToolStatus.INFRA_ERROR, ""),
        (ExecResult(status=ExecStatus.OOM, stdout="half"), ERROR, "half\nMemoryError: more memory used than allowed"),
        (ExecResult(status=ExecStatus.OUTPUT_LIMIT, error="too much"), ERROR, "too much"),
        (ExecResult(status=ExecStatus.ERROR), ERROR, "the process ended with an error"),
        (ExecResult(status=ExecStatus.TIMEOUT, stdout="half"), ToolStatus.TIMEOUT, ""),
        (ExecResult(status=ExecStatus.OK, stdout="1\n", stderr="w\n", value="2"), OK, "1\nw\n2"),
    ],
)
async def test_what_becomes_of_each_status(answer, status, text):
    result = await PythonTool(Scripted(answer)).call({"code": "1"}, ToolContext())
    assert (result.status, result.text) == (status, text)
    assert ("error" in result.data) == (status is ToolStatus.INFRA_ERROR)


async def test_a_sandbox_that_says_nothing_failed_and_the_code_did_not(monkeypatch):
    monkeypatch.setattr("arpo.tools.sandbox.tool._VERDICT", 0.05)
    sandbox = Scripted(None)
    tool = PythonTool(sandbox, PythonSettings(timeout=0.1))
    with pytest.raises(TransientError, match="says nothing"):
        await tool.call({"code": "1"}, ToolContext())
    assert sandbox.cancelled == 1
    tools = ToolBox([tool], {"python": Limit(timeout=0.1)})
    result = await tools.call("python", {"code": "1"}, ToolContext())
    assert result.status is ToolStatus.INFRA_ERROR


async def test_cancelling_a_call_ends_its_run():
    sandbox = Scripted(None)
    call = asyncio.ensure_future(PythonTool(sandbox).call({"code": "1"}, ToolContext()))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait([call])
    assert (call.cancelled(), sandbox.cancelled) == (True, 1)


async def test_runs_beyond_the_slots_wait_off_the_clock():
    tools = build([PythonSettings(preload=("numpy",), timeout=4, parallel=1)])
    code = "import time\ntime.sleep(0.3)\nprint(1)"
    results = await asyncio.gather(*(tools.call("python", {"code": code}, ToolContext()) for _ in range(3)))
    assert [result.text for result in results] == ["1"] * 3
    assert tools.stats["python"].waited > 0.4
    await tools.close()
