"""The SandboxFusion backend against a service on loopback that answers in its shape."""

import json

import pytest
from fusion_server import FusionServer, fusion_server
from pydantic import ValidationError

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolStatus, TransientError
from arpo.tools.registry import build
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecStatus
from arpo.tools.sandbox.fusion import FusionSandbox
from arpo.tools.sandbox.tool import PythonTool
from arpo.tools.settings import PythonSettings


@pytest.fixture(scope="module")
def shared():
    with fusion_server() as server:
        yield server


@pytest.fixture
def server(shared):
    shared.answers.clear()
    shared.asked.clear()
    return shared


def settings(server: FusionServer, **more) -> PythonSettings:
    return PythonSettings(backend="fusion", url=server.url, **more)


def says(body: object, status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(body).encode()


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print(6*7)", ToolStatus.OK, "42"),
        ("print(1)\n6*7", ToolStatus.OK, "1\n42"),
        ("x = 1", ToolStatus.OK, "(no output)"),
        ("from __future__ import annotations\nimport sys\nprint(2, file=sys.stderr)\n1", ToolStatus.OK, "1\n2"),
        ("1/0", ToolStatus.TOOL_ERROR, "ZeroDivisionError: division by zero"),
        ("print(1)\n1/0", ToolStatus.TOOL_ERROR, "1\nZeroDivisionError: division by zero (line 2)"),
        ("def f():\n    return 1/0\nf()", ToolStatus.TOOL_ERROR, "ZeroDivisionError: division by zero (line 2)"),
        ("x = (", ToolStatus.TOOL_ERROR, "SyntaxError: '(' was never closed"),
        ("import os\nprint(5, flush=True)\nos._exit(3)", ToolStatus.TOOL_ERROR, "5\nthe process ended with code 3"),
        ("raise MemoryError", ToolStatus.TOOL_ERROR, "MemoryError"),
        ("'\\x1b[31m'", ToolStatus.OK, "'\\x1b[31m'"),
    ],
)
async def test_what_the_model_sees(server, code, status, text):
    tool = PythonTool(FusionSandbox(server.url), settings(server))
    result = await tool.call({"code": code}, ToolContext())
    assert (result.status, result.text) == (status, text)
    await tool.close()


async def test_random_numbers_follow_the_seed(server):
    sandbox = FusionSandbox(server.url)
    code = "import random, numpy\n(random.random(), float(numpy.random.rand()))"
    first, second, other = [(await sandbox.run(ExecRequest(code=code, seed=seed))).stdout for seed in (1, 1, 2**32 + 2)]
    assert first == second != other
    await sandbox.close()


async def test_earlier_cells_run_in_one_kernel_unheard(server):
    sandbox = FusionSandbox(server.url)
    earlier = ("import random\nx = random.random()\nprint('heard')", "y = 2\n1/0")
    first = await sandbox.run(ExecRequest(code="x", earlier=earlier, seed=5))
    again = await sandbox.run(ExecRequest(code="print(x)\nx / (y - 2)", earlier=earlier, seed=5))
    assert (first.status, first.stdout) == (ExecStatus.OK, "")
    assert (again.status, again.stdout.strip()) == (ExecStatus.ERROR, first.value)
    assert again.error == "ZeroDivisionError: float division by zero (line 2)"
    assert [path for path, _, _ in server.asked] == ["/run_jupyter"] * 2
    await sandbox.close()


@pytest.mark.parametrize("earlier", [(), ("x = 1",)])
async def test_the_services_time_limit_is_a_timeout(server, earlier):
    sandbox = FusionSandbox(server.url)
    request = ExecRequest(code="while True: pass", earlier=earlier, limits=ExecLimits(wall_s=0.2))
    assert (await sandbox.run(request)).status is ExecStatus.TIMEOUT
    await sandbox.close()


async def test_what_is_asked(server):
    sandbox = FusionSandbox(server.url, key="secret")
    limits = ExecLimits(wall_s=7, memory_mb=300)
    await sandbox.run(ExecRequest(code="print(input())", stdin=b"hi", files={"a/b.txt": b"\xff"}, limits=limits))
    path, body, headers = server.asked[0]
    assert (path, body["language"], body["run_timeout"], body["memory_limit_MB"]) == ("/run_code", "python", 7, 300)
    assert (body["stdin"], body["files"], headers["Authorization"]) == ("hi", {"a/b.txt": "/w=="}, "Bearer secret")
    assert "secret" not in json.dumps(body)
    await sandbox.close()


async def test_long_output_keeps_head_and_tail(server):
    sandbox = FusionSandbox(server.url)
    code = "print('a' + 'x' * 5000 + 'z')"
    result = await sandbox.run(ExecRequest(code=code, limits=ExecLimits(output_bytes=1024)))
    assert (len(result.stdout), result.truncated) == (1024, True)
    assert (result.stdout[0], result.stdout.strip()[-1]) == ("a", "z")
    await sandbox.close()


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        (says({}, 504), None),
        (says({}, 429, Retry_After="3"), 3.0),
        (says({}, 503, Retry_After="soon"), None),
        (says({}, 500), None),
        ((0, {}, b""), None),
    ],
)
async def test_what_may_pass_is_transient_and_no_text(server, answer, after):
    sandbox = FusionSandbox(server.url)
    server.answers.append(answer)
    with pytest.raises(TransientError) as raised:
        await sandbox.run(ExecRequest(code="1"))
    assert raised.value.after == after
    await sandbox.close()


FAILED = {"status": "Failed", "message": ""}
DRIVER = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": ""}


@pytest.mark.parametrize(
    ("answer", "earlier", "why"),
    [
        (says({"status": "SandboxError", "message": "no space left", "run_result": None}), (), "no space left"),
        (says({**FAILED, "run_result": {"status": "Error", "stderr": "x"}}), (), "without a result"),
        (says(FAILED), (), "without a result"),
        (says([1]), (), "no JSON object"),
        ((200, {}, b"<html>"), (), "no JSON object"),
        ((200, {}, b"[" * 100_000), (), "no JSON object"),
        (says({}, 404), (), "HTTP 404"),
        (says({}, 401), (), "HTTP 401"),
        ((200, {}, b" " * (17 << 20)), (), "more than can be read"),
        (says({**FAILED, "driver": DRIVER, "cells": []}), ("x = 1",), "without a result"),
        (says({"status": "Success", "message": "", "driver": DRIVER, "cells": [{}]}), ("x = 1",), "without a result"),
        (says({"status": "SandboxError", "message": "kernel", "driver": None}), ("x = 1",), "kernel"),
    ],
)
async def test_what_is_no_answer_is_an_infrastructure_error(server, answer, earlier, why):
    sandbox = FusionSandbox(server.url)
    server.answers.append(answer)
    result = await sandbox.run(ExecRequest(code="1", earlier=earlier))
    assert result.status is ExecStatus.INFRA_ERROR
    assert why in result.error
    await sandbox.close()


async def test_a_proxy_of_the_environment_is_not_asked(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    sandbox = FusionSandbox(server.url)
    assert await sandbox.health() == ""
    await sandbox.close()


async def test_the_tool_from_settings(server, monkeypatch):
    monkeypatch.setenv("FUSION_KEY", "sesame")
    box = build([settings(server, key_env="FUSION_KEY")])
    result = await box.call("python", {"code": "6 * 7"}, ToolContext())
    assert (result.status, result.text) == (ToolStatus.OK, "42")
    assert {headers["Authorization"] for _, _, headers in server.asked} == {"Bearer sesame"}
    server.answers.append(says({}, 401))
    assert (await box.call("python", {"code": "1"}, ToolContext())).status is ToolStatus.INFRA_ERROR
    facts = box.tools[0].facts()
    assert (facts["backend"], facts["isolation"]) == ("fusion", "remote")
    assert "sesame" not in json.dumps(facts)
    await box.close()


def test_a_service_that_is_not_there_or_no_service_stops_the_run(server):
    with pytest.raises(ToolSetupError, match=r"no answer: .*check that the service runs"):
        build([PythonSettings(backend="fusion", url="http://127.0.0.1:9")])
    server.answers.append(says({"detail": "Not Found"}, 404))
    with pytest.raises(ToolSetupError, match="check that `url` is a SandboxFusion service"):
        build([settings(server)])
    with pytest.raises(ToolSetupError, match="FUSION_KEY is not set"):
        build([settings(server, key_env="FUSION_KEY")])


def test_settings_that_contradict_each_other():
    for wrong in ({"backend": "fusion"}, {"url": "http://x"}, {"backend": "fusion", "url": "ftp://x"}):
        with pytest.raises(ValidationError):
            PythonSettings(**wrong)
    with pytest.raises(ValidationError, match="fallback belongs to"):
        PythonSettings(backend="landlock", fallback="monty")
