"""`arpo serve-tools` as a real process, spoken to by the SDK's client and by our own MCP tools."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import arpo
from arpo.cli import main
from arpo.tools.base import ToolContext
from arpo.tools.registry import build
from arpo.tools.sessions import Session, Step

mcp = pytest.importorskip("mcp")
SOURCE = str(Path(arpo.__file__).parents[1])
KEY = "key-of-the-tests"
TOOLS = """
    import os
    from types import SimpleNamespace
    from arpo.tools.base import ToolResult, ToolStatus

    SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"],
              "additionalProperties": False}

    def make():
        async def call(arguments, context):
            text = arguments["text"]
            if text == "noise":
                print("noise of Python", flush=True)
                os.system("echo noise of a child")
            if text == "break":
                raise RuntimeError("secret path /etc/key")
            if text == "fault":
                return ToolResult(ToolStatus.TOOL_ERROR, "that was \\x1b[31mwrong")
            return text.upper()

        print("noise while it is built")
        return SimpleNamespace(name="shout", description="says it louder", parameters=SCHEMA, call=call)

    class Kept:
        name, fork = "kept", "replay"

        async def start(self, context):
            return []

        async def step(self, state, tool, arguments, context):
            state.append(arguments["text"])
            return " ".join(state)

        def copy(self, state):
            return list(state)

        async def end(self, state):
            pass

    def keep():
        kept = Kept()

        async def call(arguments, context):
            return await context.session.run(kept, "keep", arguments, context)

        return SimpleNamespace(
            name="keep", description="keeps words", parameters=SCHEMA, call=call, environment=kept
        )
"""
CONFIG = """
    [rollout]
    total = 2
    initial = 2
    branching = { type = "none" }
    [[tools]]
    type = "import"
    path = "served_tools:make"
    [[tools]]
    type = "import"
    path = "served_tools:keep"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "served_tools.py").write_text(textwrap.dedent(TOOLS))
    (folder / "served.toml").write_text(textwrap.dedent(CONFIG))
    return folder


def environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{folder}", "SERVED_KEY": KEY}


def text(answer: Any) -> tuple[bool, str]:
    return answer.is_error, answer.content[0].text


async def check_calls(client: Any) -> None:
    """What every client sees."""
    shout, keep = (await client.list_tools()).tools
    assert (shout.name, shout.description, keep.name) == ("shout", "says it louder", "keep")
    assert shout.input_schema["required"] == ["text"]
    assert text(await client.call_tool("shout", {"text": "noise"})) == (False, "NOISE")
    assert text(await client.call_tool("shout", {"text": "fault"})) == (True, "that was \ufffd[31mwrong")
    wrong, said = text(await client.call_tool("shout", {"txt": "a"}))
    assert (wrong, said.startswith("Wrong arguments for shout at $")) == (True, True)
    assert text(await client.call_tool("shot", {})) == (True, "There is no tool 'shot'; there are: shout, keep.")
    with pytest.raises(mcp.MCPError) as raised:
        await client.call_tool("shout", {"text": "break"})
    assert str(raised.value) == "the tool is out of order; try again later"
    assert [text(await client.call_tool("keep", {"text": one}))[1] for one in "ab"] == ["a", "a b"]


async def test_over_standard_streams(folder: Path) -> None:
    arguments = ["-m", "arpo", "serve-tools", str(folder / "served.toml")]
    started = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environ(folder))
    async with mcp.Client(started) as client:
        assert (client.server_info.name, client.server_info.version) == ("arpo", arpo.__version__)
        await check_calls(client)


class Http:
    """The command, serving over HTTP."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "arpo", "serve-tools", str(folder / "served.toml"), "--transport", "http"]
        command += ["--port", "0", "--key-variable", "SERVED_KEY"]
        env = environ(folder)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("arpo: shout, keep at http://127.0.0.1:"), line
        self.url = line.split()[-1]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = {"Authorization": f"Bearer {KEY}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            mcp.Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[Http]:
    server = Http(folder)
    yield server
    server.process.kill()
    server.process.communicate()


async def test_over_http_with_a_session_per_connection(http: Http) -> None:
    async with http.client() as one, http.client() as other:
        await check_calls(one)
        assert text(await other.call_tool("keep", {"text": "x"})) == (False, "x")
        together = await asyncio.gather(*(other.call_tool("keep", {"text": "y"}) for _ in range(3)))
        assert sorted(text(answer)[1] for answer in together) == ["x y", "x y y", "x y y y"]


async def test_a_request_without_a_session_does_not_reach_state(http: Http) -> None:
    async with http.client() as client:
        version = "2026-07-28"
        assert client.protocol_version != version
    headers = {
        "Authorization": f"Bearer {KEY}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "keep",
    }
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in {
        "protocolVersion": version, "clientInfo": {"name": "t", "version": "1"}, "clientCapabilities": {},
    }.items()}  # fmt: skip
    call = {"name": "keep", "arguments": {"text": "a"}, "_meta": meta}
    async with httpx.AsyncClient(headers=headers) as client:
        answer = await client.post(http.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    assert "keep keeps state between calls: connect with the initialize handshake" in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {KEY}", "Host": "evil.example"}, 421),
        ({"Authorization": f"Bearer {KEY}", "Origin": "http://evil.example"}, 403),
    ],
)
async def test_requests_from_elsewhere_are_refused(headers: dict[str, str], status: int, http: Http) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx.AsyncClient() as client:
        answer = await client.post(http.url, json=body, headers={"Accept": "application/json", **headers})
    assert answer.status_code == status


async def test_our_own_tools_of_our_own_server(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stateful server of ours is one trajectory's at a time, and a branch replays."""
    from arpo.tools.mcp.settings import McpSettings

    monkeypatch.setenv("SERVED_KEY", KEY)
    server = {"url": http.url, "headers": {"Authorization": "Bearer ${SERVED_KEY}"}}
    settings = McpSettings.model_validate({"server": server, "stateful": True, "tools": ["keep"]})
    box = await asyncio.to_thread(build, [settings])
    name = box.tools[0].environment.name  # type: ignore[attr-defined]
    session = Session()
    for word, seen in (("a", "a"), ("b", "a b")):
        result = await box.call("keep", {"text": word}, ToolContext("t", "r0", session=session))
        session.append(Step(name, "keep", {"text": word}, 0))
        assert result.text == seen
    branch = session.fork()
    assert (await box.call("keep", {"text": "c"}, ToolContext("t", "r0", session=branch))).text == "a b c"
    for one in (session, branch):
        await one.close()
    await box.close()


def test_sigterm_ends_it_in_order(http: Http) -> None:
    """The last test with this server. What it said of clients that were cut off before is not looked at here."""
    descriptor = http.process.stderr.fileno()
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 65536):
            pass
    os.set_blocking(descriptor, True)
    http.process.send_signal(signal.SIGTERM)
    _, said = http.process.communicate(timeout=20)
    assert http.process.returncode == 0
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--transport", "http", "--host", "0.0.0.0"], "--host 0.0.0.0 can be reached from elsewhere"),
        (["--transport", "http", "--key-variable", "NO_SUCH"], "--key-variable NO_SUCH: there is no such environment"),
        (["nowhere.toml"], "nowhere.toml: no such config file"),
    ],
)
def test_mistakes(tokens: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-tools", *tokens]) == 2
    said = capfd.readouterr()
    assert (said.out, message in " ".join(said.err.split())) == ("", True)


def test_a_client_that_went_away_is_no_error_of_ours() -> None:
    from arpo.tools.mcp.listening import _no_client_gone

    def record(error: BaseException | None) -> logging.LogRecord:
        exc_info = (type(error), error, None) if error is not None else None
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "said", (), exc_info)

    gone = anyio.ClosedResourceError()
    shown = [None, ValueError("ours"), BaseExceptionGroup("both", [gone, ValueError("ours")])]
    assert [_no_client_gone(record(error)) for error in shown] == [True, True, True]
    hidden = [gone, anyio.BrokenResourceError(), BaseExceptionGroup("all", [gone, anyio.BrokenResourceError()])]
    assert [_no_client_gone(record(error)) for error in hidden] == [False, False, False]
