"""The E2B backend against a stand-in for the SDK: its classes, arguments and exceptions in shape.

The service itself is not reached from tests.
"""

import asyncio
import contextlib
import io
import json
import sys
import types
from typing import ClassVar

import pytest

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolStatus, TransientError
from arpo.tools.registry import build
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecStatus
from arpo.tools.sandbox.e2b import E2BSandbox
from arpo.tools.sandbox.tool import PythonTool
from arpo.tools.settings import PythonSettings


class SandboxException(Exception):  # noqa: N818 - the SDK's names
    def __init__(self, *args, status_code=None):
        super().__init__(*args)
        self.status_code = status_code


class TimeoutException(SandboxException):
    pass


class AuthenticationException(Exception):  # noqa: N818
    pass


class RateLimitException(SandboxException):
    def __init__(self, *args):
        super().__init__(*args, status_code=429)


class Files:
    def __init__(self):
        self.written = {}

    async def write(self, path, data):
        self.written[path] = data


class AsyncSandbox:
    """`run_code` runs in this process: the code is the test's own."""

    made: ClassVar[list["AsyncSandbox"]] = []
    fails: ClassVar[Exception | None] = None

    @classmethod
    async def create(cls, template=None, timeout=None, allow_internet_access=None, **opts):
        if cls.fails is not None:
            raise cls.fails
        sandbox = cls()
        sandbox.asked = {"timeout": timeout, "internet": allow_internet_access, **opts}
        sandbox.files, sandbox.cells, sandbox.killed, sandbox.space = Files(), [], 0, {}
        cls.made.append(sandbox)
        return sandbox

    async def run_code(self, code, language=None, *, timeout=None, request_timeout=None):
        self.cells.append(code)
        if "sleep" in code:
            await asyncio.sleep(timeout)
            raise TimeoutException("Execution timed out")
        if "vanish" in code:
            raise TimeoutException("The sandbox was killed while the request was in progress.")
        return self._execution(code)

    def _execution(self, code):
        out, value, error = io.StringIO(), None, None
        try:
            with contextlib.redirect_stdout(out):
                try:
                    value = eval(code, self.space)  # noqa: S307
                except SyntaxError:
                    exec(code, self.space)  # noqa: S102
        except Exception as raised:  # noqa: BLE001
            shown = f"---> 2 boom\n\x1b[0;31m{type(raised).__name__}\x1b[0m: {raised}"
            error = types.SimpleNamespace(name=type(raised).__name__, value=str(raised), traceback=shown)
        logs = types.SimpleNamespace(stdout=[out.getvalue()], stderr=[])
        return types.SimpleNamespace(logs=logs, error=error, text=None if value is None else repr(value), results=[])

    async def kill(self):
        self.killed += 1
        return True


@pytest.fixture
def sdk(monkeypatch):
    module = types.ModuleType("e2b_code_interpreter")
    module.AsyncSandbox = AsyncSandbox
    monkeypatch.setitem(sys.modules, "e2b_code_interpreter", module)
    monkeypatch.setattr(AsyncSandbox, "made", [])
    return AsyncSandbox


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print(6*7)", ToolStatus.OK, "42"),
        ("6*7", ToolStatus.OK, "42"),
        ("x = 1", ToolStatus.OK, "(no output)"),
        ("x = 1\n1/0", ToolStatus.TOOL_ERROR, "ZeroDivisionError: division by zero (line 2)"),
    ],
)
async def test_what_the_model_sees(sdk, code, status, text):
    tool = PythonTool(E2BSandbox("key"), PythonSettings(backend="e2b"))
    result = await tool.call({"code": code}, ToolContext())
    assert (result.status, result.text) == (status, text)


async def test_every_run_has_a_machine_of_its_own_without_internet(sdk):
    sandbox = E2BSandbox("key")
    await sandbox.run(ExecRequest(code="x = 1", files={"a": b"b"}))
    result = await sandbox.run(ExecRequest(code="y", earlier=("y = 4", "1/0"), seed=9))
    assert (result.status, result.value) == (ExecStatus.OK, "4")
    assert [one.killed for one in sdk.made] == [1, 1]
    assert sdk.made[0].files.written == {"a": b"b"}
    assert sdk.made[1].cells == ["import random; random.seed(9)", "y = 4", "1/0", "y"]
    assert {(one.asked["internet"], one.asked["api_key"]) for one in sdk.made} == {(False, "key")}


async def test_a_time_out_is_the_codes_only_at_its_time_limit(sdk):
    sandbox = E2BSandbox("key")
    late = await sandbox.run(ExecRequest(code="sleep", limits=ExecLimits(wall_s=0.1)))
    assert late.status is ExecStatus.TIMEOUT
    with pytest.raises(TransientError, match="killed while"):
        await sandbox.run(ExecRequest(code="vanish"))
    assert [one.killed for one in sdk.made] == [1, 1]


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (RateLimitException("slow down"), True),
        (SandboxException("oops", status_code=502), True),
        (ConnectionResetError("gone"), True),
        (TimeoutException("Request timed out"), True),
        (AuthenticationException("wrong key"), False),
        (SandboxException("no such template", status_code=400), False),
    ],
)
async def test_a_service_without_an_answer(sdk, monkeypatch, error, transient):
    monkeypatch.setattr(sdk, "fails", error)
    request = ExecRequest(code="1")
    if transient:
        with pytest.raises(TransientError, match=type(error).__name__):
            await E2BSandbox("key").run(request)
    else:
        result = await E2BSandbox("key").run(request)
        assert (result.status, type(error).__name__ in result.error) == (ExecStatus.INFRA_ERROR, True)


async def test_cancelling_ends_the_machine(sdk):
    run = asyncio.ensure_future(E2BSandbox("key").run(ExecRequest(code="sleep", limits=ExecLimits(wall_s=60))))
    while not (sdk.made and len(sdk.made[0].cells) == 2):
        await asyncio.sleep(0.001)
    run.cancel()
    await asyncio.wait([run])
    assert (run.cancelled(), sdk.made[0].killed) == (True, 1)


async def test_the_tool_from_settings(sdk, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", "sesame")
    box = build([PythonSettings(backend="e2b")])
    assert (await box.call("python", {"code": "6 * 7"}, ToolContext())).text == "42"
    assert "sesame" not in json.dumps(box.tools[0].facts())
    await box.close()
    monkeypatch.setattr(sdk, "fails", AuthenticationException("wrong key"))
    with pytest.raises(ToolSetupError, match=r"wrong key.*check the key"):
        build([PythonSettings(backend="e2b")])
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(ToolSetupError, match="E2B_API_KEY is not set"):
        build([PythonSettings(backend="e2b")])


def test_without_the_sdk(monkeypatch):
    monkeypatch.setitem(sys.modules, "e2b_code_interpreter", None)
    with pytest.raises(ToolSetupError, match=r"pip install 'arpo\[e2b\]'"):
        E2BSandbox("key")
