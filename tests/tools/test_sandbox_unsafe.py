"""Plain processes, for those who ask for them: what they give, what they end, and that they say so."""

import logging
import os
import time

import pytest

from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.registry import build
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecStatus
from arpo.tools.sandbox.unsafe import UnsafeLocal
from arpo.tools.settings import PythonSettings


async def run(code: str, *, limits: ExecLimits | None = None, **more):
    return await UnsafeLocal().run(ExecRequest(code=code, limits=limits or ExecLimits(), **more))


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("import sys\nprint(1)\nprint(2, file=sys.stderr)\n6*7", ToolStatus.OK, "1\n2\n42"),
        ("x = 1", ToolStatus.OK, "(no output)"),
        ("print(1)\n1/0", ToolStatus.TOOL_ERROR, "1\nZeroDivisionError: division by zero (line 2)"),
        ("x = (", ToolStatus.TOOL_ERROR, "SyntaxError: '(' was never closed"),
        ("import os\nprint(5, flush=True)\nos._exit(3)", ToolStatus.TOOL_ERROR, "5\nthe process ended with code 3"),
        ("import os\nos.abort()", ToolStatus.TOOL_ERROR, "the process was ended by signal 6 (SIGABRT)"),
    ],
)
async def test_what_the_model_sees_and_what_the_log_says(caplog, code, status, text):
    with caplog.at_level(logging.WARNING):
        box = build([PythonSettings(backend="unsafe_local")])
    assert "it can read, change and end whatever this user can" in caplog.text
    result = await box.call("python", {"code": code}, ToolContext(seed=1))
    assert (result.status, result.text) == (status, text)
    facts = box.tools[0].facts()
    assert (facts["backend"], facts["isolation"], facts["asked_for"]) == ("unsafe_local", "none", "unsafe_local")
    await box.close()


async def test_earlier_cells_seeds_files_and_stdin():
    code = "import random\nprint(x == 3, open('a/b').read(), input(), random.random())"
    first, second = [await run(code, earlier=("x = 3", "1/0"), files={"a/b": b"c"}, stdin=b"d", seed=4) for _ in "ab"]
    assert first.stdout == second.stdout
    assert first.stdout.startswith("True c d 0.")


async def test_no_secret_of_the_environment_is_handed_down(monkeypatch):
    monkeypatch.setenv("FAKE_API_KEY", "sesame")
    assert "sesame" not in (await run("import os\ndict(os.environ)")).value


async def test_limits():
    late = await run("while True: pass", limits=ExecLimits(wall_s=0.3))
    assert late.status is ExecStatus.TIMEOUT
    assert (await run("x = bytearray(6 << 30)")).status is ExecStatus.OOM
    flood = await run("while True: print('x' * 1000)", limits=ExecLimits(output_bytes=2048))
    assert (flood.status, len(flood.stdout), flood.truncated) == (ExecStatus.OUTPUT_LIMIT, 2048, True)


async def test_its_children_end_with_it(tmp_path):
    """Unless they leave its process group, which nothing here keeps them from."""
    code = "import os, time\npid = os.fork()\nif not pid: time.sleep(60)\npid"
    child = int((await run(code, limits=ExecLimits(wall_s=30))).value)
    for _ in range(200):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    else:
        pytest.fail("the child is still there")
