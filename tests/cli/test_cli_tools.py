"""`arpo tools`: what it lists, what a call prints and how it ends, and how text becomes arguments."""

import io
import json
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from arpo.cli import main
from arpo.tools.arguments import ArgumentError, from_text, text_parameter

TOOL = """
    import os
    from types import SimpleNamespace
    from arpo.tools.base import ToolResult, ToolStatus, TransientError

    SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "times": {"type": "integer"}},
              "required": ["text"], "additionalProperties": False}

    def make(name="echo", **more):
        async def call(arguments, context):
            text = arguments["text"]
            if text == "break":
                raise TransientError("the line is \\x1b[31mdown")
            if text == "fault":
                return ToolResult(ToolStatus.TOOL_ERROR, "that was wrong")
            if text == "where":
                return f"{context.task_id} {context.path} {context.seed} {context.session.steps('x')}"
            if text == "object":
                return ToolResult(ToolStatus.OK, "", {"things": {1}}, cached=True, score=1.5, empty=True)
            return text * arguments.get("times", 1)

        return SimpleNamespace(name=name, description="says it again", parameters=SCHEMA, call=call, **more)

    def told():
        return make("told", facts=lambda: {"backend": "none", "versions": {"x": 1}})
"""
MINE = """
    [rollout]
    total = 2
    initial = 2
    branching = { type = "none" }
    [[tools]]
    type = "import"
    path = "cli_tools_mine:make"
    [[tools]]
    type = "import"
    path = "cli_tools_mine:told"
    timeout = 3.5
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_tools_mine.py").write_text(textwrap.dedent(TOOL))
    (tmp_path / "mine.toml").write_text(textwrap.dedent(MINE))
    monkeypatch.syspath_prepend(tmp_path)


def call(capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str, str]:
    code = main(["tools", "call", "echo", "mine.toml", *tokens])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_list_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "list", "mine.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "echo (type import)",
        "  says it again",
        "  parameter text: string",
        "  parameter times: integer, optional",
    ]
    assert lines[4].startswith("  limits: timeout 30.0, max_chars 2000")
    assert lines[-2:] == ["  backend: none", '  versions: {"x": 1}']


def test_list_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "list", "mine.toml", "--json"]) == 0
    echo, told = json.loads(capsys.readouterr().out)
    assert (echo["name"], echo["type"], echo["stateful"], echo["facts"]) == ("echo", "import", False, {})
    assert echo["parameters"]["required"] == ["text"]
    assert (told["limits"]["timeout"], told["facts"]["versions"]) == (3.5, {"x": 1})


def test_list_refuses_what_a_run_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = '[[tools]]\ntype = "import"\npath = "cli_tools_mine:make"\n'
    (tmp_path / "twice.toml").write_text(textwrap.dedent(MINE) + twice)
    assert main(["tools", "list", "twice.toml"]) == 2
    assert "more than one is named echo" in capsys.readouterr().err


def test_a_call_prints_the_text_and_on_stderr_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--arg", "text=a=b ", "-a", "times=2")
    assert (code, out) == (0, "a=b a=b \n")
    assert err.startswith("echo: ok, 0.0")


def test_a_call_has_what_a_rollout_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--arg", "text=where", "--seed", "7")[1] == "shell r0 7 []\n"


@pytest.mark.parametrize(("text", "code", "out"), [("fault", 1, "that was wrong\n"), ("break", 6, "")])
def test_exit_codes(text: str, code: int, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "--arg", f"text={text}")
    assert done[:2] == (code, out)
    assert "\x1b" not in done[2]
    assert ("down" in done[2]) == (code == 6)


def test_what_the_policy_would_read_of_a_missing_argument(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys)
    assert (code, out) == (1, "Wrong arguments for echo at $: 'text' is a required property\n")


def test_a_whole_result(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--json", "--arg", "text=object")
    told = json.loads(out)
    assert (code, err, told["status"], told["arguments"]) == (0, "", "ok", {"text": "object"})
    assert (told["data"], told["cached"], told["score"], told["empty"]) == ({"things": "{1}"}, True, 1.5, True)


def test_text_from_a_file_and_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code.txt").write_text("line 1\nline 2 = é")
    assert call(capsys, "--file", "code.txt")[1] == "line 1\nline 2 = é\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("heard"))
    assert call(capsys, "--file", "-")[1] == "heard\n"
    (tmp_path / "bytes.bin").write_bytes(b"\xff\xfe")
    for name in ("bytes.bin", "nowhere.txt"):
        assert call(capsys, "--file", name)[0] == 2


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--arg", "txt=a"], "--arg txt: tool 'echo' has no such parameter; there is: text, times"),
        (["--arg", "times=two"], "--arg times: tool 'echo' does not take 'two' here: 'two' is not of type 'integer'"),
        (["--arg", "times=2.5"], "2.5 is not of type 'integer'"),
        (["--arg", "text"], "--arg 'text': give it as key=value"),
        (["--arg", "text=a", "--arg", "text=b"], "--arg text: it is given twice"),
        (["--arg", "text=a", "--file", "mine.toml"], "--file: tool 'echo' needs exactly one parameter"),
    ],
)
def test_mistakes_name_the_argument(tokens: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *tokens)
    assert (code, out) == (2, "")
    assert message in err


def test_an_unknown_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "call", "ecko", "mine.toml"]) == 2
    assert "there is no tool 'ecko'; the configuration has: echo, told" in capsys.readouterr().err


TYPED = SimpleNamespace(
    name="typed",
    parameters={
        "type": "object",
        "$defs": {"pair": {"type": "array", "items": {"type": "number"}, "minItems": 2}},
        "properties": {
            "s": {"type": "string"},
            "mode": {"enum": ["a", "b"]},
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "o": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "u": {"type": ["string", "integer"]},
            "p": {"$ref": "#/$defs/pair"},
            "any": {},
        },
        "required": ["mode"],
    },
)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("s=5", "5"),
        ("s=", ""),
        ("mode=a", "a"),
        ("i=5", 5),
        ("i=5.0", 5),
        ("n=2.5", 2.5),
        ("n=3", 3),
        ("b=True", True),
        ("b=false", False),
        ("o=null", None),
        ("o=4", 4),
        ("u=4", "4"),
        ("p=[1, 2.5]", [1, 2.5]),
        ("any=x", "x"),
    ],
)
def test_text_becomes_what_the_schema_wants(pair: str, value: object) -> None:
    read = from_text(TYPED, [pair])[pair[0] if "=" in pair[:2] else pair.split("=")[0]]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("pair", ["i=true", "n=1e400", "n=NaN", "n=Infinity", "b=1", "b=yes", "p=[1]", "mode=c", "o="])
def test_what_would_lose_something_is_refused(pair: str) -> None:
    with pytest.raises(ArgumentError, match=f"--arg {pair.split('=')[0]}: tool 'typed'"):
        from_text(TYPED, [pair])


def test_the_one_text_parameter() -> None:
    assert text_parameter(TYPED, given=["u", "any"]) == "s"
    with pytest.raises(ArgumentError, match="it has s, u, any"):
        text_parameter(TYPED)
    with pytest.raises(ArgumentError, match="it has none"):
        text_parameter(TYPED, given=["s", "u", "any"])
