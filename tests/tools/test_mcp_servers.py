"""Which servers the settings name, what their variables stand for, what they offer, and what of it may change."""

import gc
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.mcp.servers import servers
from arpo.tools.mcp.settings import McpSettings
from arpo.tools.registry import build

pytest.importorskip("mcp")
PLAIN = str(Path(__file__).parents[1] / "support" / "mcp_plain_server.py")


def settings(**given: Any) -> McpSettings:
    return McpSettings.model_validate(given)


def config(tmp_path: Path, **entries: Any) -> str:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return str(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs either config"),
        ({"config": "a.json", "server": {"command": "x"}}, "needs either config"),
        ({"server": {}}, "either a command or a url"),
        ({"server": {"command": "x", "url": "http://h"}}, "either a command or a url"),
        ({"server": {"url": "http://h", "env": {"A": "b"}}}, "args, env and cwd are of a command"),
        ({"server": {"command": "x", "headers": {"A": "b"}}}, "headers are of a url"),
        ({"server": {"url": "ftp://h"}}, "should match pattern"),
        ({"server": {"command": "x"}, "servers": ["a"]}, "an inline server is the only one"),
        ({"server": {"command": "x"}, "stateful": True, "repeatable": True}, "cannot be repeatable"),
    ],
)
def test_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(**given)


def test_a_file_of_a_desktop_client_is_read(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        files={"type": "stdio", "command": "npx", "args": ["-y", "files", "${ROOT:-/data}"], "autoApprove": ["read"]},
        web={"type": "http", "url": "https://${HOST}/mcp", "headers": {"Authorization": "Bearer ${API_KEY}"}},
        off={"command": "x", "disabled": True},
    )
    files, web = servers(settings(config=path), {"HOST": "example.org", "API_KEY": "sk-12345678"})
    assert (files.name, files.settings.args, files.secrets) == ("files", ("-y", "files", "/data"), frozenset())
    assert web.settings.headers == {"Authorization": "Bearer sk-12345678"}
    assert (web.settings.url, web.shown) == ("https://example.org/mcp", "https://${HOST}/mcp")
    assert web.hidden("my key is sk-12345678.") == "my key is [hidden]."
    assert "sk-12345678" not in repr(web)
    assert [one.name for one in servers(settings(config=path, servers=["files"]), {})] == ["files"]


@pytest.mark.parametrize(
    ("entries", "more", "message"),
    [
        ({"a": {"command": "x", "comand": "y"}}, {}, "mcpServers.a: unknown key comand; there is: args, command"),
        ({"a": {"url": "http://h", "type": "sse"}}, {}, "mcpServers.a: the SSE transport is gone"),
        ({"a": {"command": 5}}, {}, "mcpServers.a: command: Input should be a valid string"),
        ({"a": {"command": "x", "env": {"K": 5}}}, {}, "mcpServers.a: env.K: Input should be a valid string"),
        ({"a": "x"}, {}, "mcpServers.a is no object"),
        ({"a": {"command": "x"}}, {"servers": ["b"]}, "servers names b, and there is: a"),
        ({"a": {"command": "x", "env": {"K": "${NO_SUCH}"}}}, {}, "'a': env.K needs the environment variable NO_SUCH"),
        ({}, {}, "needs an object mcpServers"),
    ],
)
def test_mistakes_in_the_file(entries: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ToolSetupError) as raised:
        servers(settings(config=config(tmp_path, **entries), **more), {})
    assert message in str(raised.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ToolSetupError, match=r"nowhere.json: cannot be read"):
        servers(settings(config="nowhere.json"), {})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ToolSetupError, match=r"bad.json: cannot be read as JSON"):
        servers(settings(config=str(tmp_path / "bad.json")), {})


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def plain(tmp_path: Path, schema: dict[str, Any] = SCHEMA, **more: Any) -> Any:
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    server = {
        "command": sys.executable,
        "args": ["-I", "-S", PLAIN],
        "env": {"PLAIN_SCHEMA": f"{tmp_path}/schema.json"},
    }
    return build([settings(server=server, **more)])


async def test_a_frozen_schema_that_changes_is_refused_with_the_difference(tmp_path: Path) -> None:
    frozen = tmp_path / "runs" / "tools.json"
    more = {"freeze": str(frozen), "tools": ["echo"]}
    for _ in range(2):
        await plain(tmp_path, **more).close()
    kept = json.loads(frozen.read_text())
    assert kept == {"servers": {"server": {"echo": {"description": "says it again", "parameters": SCHEMA}}}}
    changed = {**SCHEMA, "properties": {"text": {"type": "integer", "description": "\x1b[2J"}}}
    with pytest.raises(ToolSetupError) as raised:
        plain(tmp_path, changed, **more)
    told = str(raised.value)
    assert f"'server' offers other tools than in {frozen}; delete" in told
    assert '-          "type": "string"\n+          "description": "' in told
    assert '+          "type": "integer"' in told
    assert "\x1b" not in told
    assert json.loads(frozen.read_text()) == kept
    with pytest.raises(ToolSetupError, match="offers other tools"):
        plain(tmp_path, freeze=str(frozen), tools=["echo", "large"])
    frozen.write_text("[]")
    with pytest.raises(ToolSetupError, match="is no file of frozen tools"):
        plain(tmp_path, **more)


async def test_a_server_that_comes_back_with_other_tools_is_not_used(tmp_path: Path) -> None:
    box = plain(tmp_path)
    await box.call("die", {}, ToolContext())
    (tmp_path / "schema.json").write_text(json.dumps({**SCHEMA, "title": "new"}))
    result = await box.call("echo", {"text": "a"}, ToolContext())
    assert result.status is ToolStatus.INFRA_ERROR
    assert "offers other tools than in the start of this run" in result.data["error"]
    await box.close()


async def test_arguments_that_the_schema_does_not_name_are_refused(tmp_path: Path) -> None:
    box = plain(tmp_path)
    result = await box.call("echo", {"text": "a", "more": 1}, ToolContext())
    assert (result.status, "'more' was unexpected" in result.text) == (ToolStatus.TOOL_ERROR, True)
    await box.close()
    composed = {"type": "object", "allOf": [SCHEMA], "properties": {"times": {"type": "integer"}}}
    box = plain(tmp_path, composed)
    assert (await box.call("echo", {"text": "a", "times": 1}, ToolContext())).status is ToolStatus.OK
    assert (await box.call("echo", {"text": "a", "more": 1}, ToolContext())).status is ToolStatus.TOOL_ERROR
    await box.close()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "http://169.254.169.254/x"}}}, "points outside of itself"),
        ({"type": "object", "properties": {"a": {"type": "strange"}}}, "its schema is of no use"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "its schema is of no use"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "its schema is of no use"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "its schema is of no use"),
    ],
)
def test_schemas_that_cannot_be_used(schema: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ToolSetupError, match=message):
        plain(tmp_path, schema)


async def test_what_may_be_repeated_is_the_annotations_word_or_the_settings(tmp_path: Path) -> None:
    for wish, echo, remember in ((None, True, False), (True, True, True), (False, False, False)):
        box = plain(tmp_path, repeatable=wish)
        tools = {tool.name: tool for tool in box.tools}
        assert (tools["echo"].stateless, tools["remember"].stateless) == (echo, remember)
        assert (tools["echo"].idempotent, tools["remember"].idempotent) == (echo, remember)
        await box.close()


async def test_two_servers_of_one_file_and_the_names_of_their_tools(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", PLAIN]}
    path = config(tmp_path, one=entry, two=entry)
    with pytest.raises(ToolSetupError, match="a second tool named 'echo'"):
        build([settings(config=path, tools=["echo"])])
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "arpo mcp"]
    with pytest.raises(ToolSetupError, match="no name of a tool; change prefix"):
        build([settings(config=path, tools=["echo"], prefix="{server} ")])
    box = build([settings(config=path, tools=["echo"], prefix="{server}.")])
    assert box.names == ("one.echo", "two.echo")
    facts = box.tools[1].facts()  # type: ignore[attr-defined]
    assert (facts["server"], facts["identity"], facts["protocol"]) == ("two", "plain 0.1", "2025-06-18")
    assert len(facts["schema"]) == 16
    assert (await box.call("two.echo", {"text": "a"}, ToolContext())).text == "a"
    await box.close()
