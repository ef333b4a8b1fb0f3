"""The tool box: limits, statuses and counters that hold for every tool; and building it."""

import asyncio
import sys
import textwrap
import unicodedata
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.registry import build
from arpo.tools.search import Document, SearchIndex
from arpo.tools.settings import ImportSettings, PythonSettings, SearchSettings, ToolSettings
from arpo.tools.toolbox import Limit, ToolBox, cap, clean

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}


def make(name, action, schema=SCHEMA):
    async def call(arguments, context):
        return await action(arguments["x"])

    return SimpleNamespace(name=name, description=name, parameters=schema, call=call)


async def echo(x):
    return ToolResult(ToolStatus.OK, x)


async def test_a_good_call_is_timed_and_counted():
    box = ToolBox([make("echo", echo)])
    result = await box.call("echo", {"x": "hi"}, ToolContext())
    assert (result.status, result.text) == (ToolStatus.OK, "hi")
    assert result.latency > 0
    stats = box.stats["echo"]
    assert (stats.calls, stats.ok, stats.errors, [*stats.latencies]) == (1, 1, 0, [result.latency])


@pytest.mark.parametrize("arguments", [{}, {"x": 5}, {"x": "a", "y": "b"}])
async def test_wrong_arguments_are_told_to_the_model_and_run_nothing(arguments):
    ran = []

    async def action(x):
        ran.append(x)
        return ToolResult(ToolStatus.OK, "")

    box = ToolBox([make("t", action)])
    result = await box.call("t", arguments, ToolContext())
    assert result.status is ToolStatus.TOOL_ERROR
    assert result.text.startswith("Wrong arguments for t at $")
    assert ran == []
    assert box.stats["t"].errors == 1


async def test_an_unknown_tool_lists_the_known():
    result = await ToolBox([make("echo", echo)]).call("ecko", {}, ToolContext())
    assert (result.status, result.text) == (ToolStatus.TOOL_ERROR, "There is no tool 'ecko'; there are: echo.")


async def test_time_limit():
    async def slow(x):
        await asyncio.sleep(5)
        return ToolResult(ToolStatus.OK, "late")

    box = ToolBox([make("slow", slow)], {"slow": Limit(timeout=0.05)})
    result = await box.call("slow", {"x": ""}, ToolContext())
    assert (result.status, result.text) == (ToolStatus.TIMEOUT, "Timed out after 0.05 s.")
    assert 0.05 <= result.latency < 1
    assert box.stats["slow"].timeouts == 1


@pytest.mark.parametrize("error", [RuntimeError("secret path"), TimeoutError("of its own"), OSError(28, "disk full")])
async def test_an_exception_is_an_infrastructure_error_and_is_not_shown(error):
    async def broken(x):
        raise error

    box = ToolBox([make("broken", broken)])
    result = await box.call("broken", {"x": ""}, ToolContext())
    assert (result.status, result.text) == (ToolStatus.INFRA_ERROR, "")
    assert type(error).__name__ in result.data["error"]
    assert box.stats["broken"].infra_errors == 1


async def test_an_empty_output_is_a_success_and_runs_once():
    ran = []

    async def quiet(x):
        ran.append(x)
        return ToolResult(ToolStatus.OK, "")

    result = await ToolBox([make("quiet", quiet)]).call("quiet", {"x": "1"}, ToolContext())
    assert (result.status, result.text, ran) == (ToolStatus.OK, "", ["1"])


async def test_long_output_keeps_head_and_tail():
    box = ToolBox([make("echo", echo)], {"echo": Limit(max_chars=200)})
    text = "head" + "x" * 5000 + "tail"
    result = await box.call("echo", {"x": text}, ToolContext())
    assert result.text.startswith("headxxx")
    assert result.text.endswith("xxxtail")
    assert len(result.text) <= 200


def test_cap_says_how_much_was_cut():
    text = "".join(chr(97 + i % 26) for i in range(1000))
    short = cap(text, 300)
    head, _, rest = short.partition(" [... ")
    cut, _, tail = rest.partition(" characters cut ...] ")
    assert text == head + text[len(head) : len(head) + int(cut)] + tail
    assert cap(text, 1000) == text


def test_clean_replaces_what_could_fool_a_terminal_or_a_tokenizer():
    assert clean("a\x1b[31mb\x00c\ud800d\u202ee\r\nf\tg") == "a\ufffd[31mb\ufffdc\ufffdd\ufffde\nf\tg"
    assert clean("Côte d'Ivoire 北京") == "Côte d'Ivoire 北京"


def test_clean_replaces_all_control_characters_and_surrogates_and_nothing_else():
    chars = [chr(code) for code in [*range(0x10000), *range(0x10000, 0x110000, 101)]]
    overrides = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    control = [unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t" for char in chars]
    unsafe = [bad or char in overrides for char, bad in zip(chars, control, strict=True)]
    cleaned = ["\ufffd" if bad else char for char, bad in zip(chars, unsafe, strict=True)]
    assert clean("|".join(chars)) == "|".join(cleaned)


async def test_stats_are_taken_and_start_again():
    box = ToolBox([make("echo", echo)])
    await box.call("echo", {"x": "1"}, ToolContext())
    assert box.take_stats()["echo"].calls == 1
    assert box.stats["echo"].calls == 0


def test_settings_are_told_apart_by_type():
    adapter = TypeAdapter(ToolSettings)
    assert adapter.validate_python({"type": "python", "timeout": 1}) == PythonSettings(timeout=1)
    for wrong in ({"type": "telepathy"}, {"type": "search", "top_n": 3}, {"type": "import", "path": "no factory"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


async def test_build_search_and_python(tmp_path):
    SearchIndex.build([Document("1", "Chad", "capital: N'Djamena")], tmp_path / "facts")
    box = build([SearchSettings(), PythonSettings(backend="monty")], {"factbook": tmp_path / "facts"})
    assert box.names == ("search", "python")
    result = await box.call("search", {"query": "chad"}, ToolContext())
    assert result.text == "Chad | capital: N'Djamena"
    assert (await box.call("python", {"code": "2+2"}, ToolContext())).text == "4"
    await box.close()


def test_build_names_a_missing_corpus(tmp_path):
    with pytest.raises(ToolSetupError, match=r"tools\[0\] \(type search\): .*gone: no such corpus"):
        build([SearchSettings(corpus=str(tmp_path / "gone"))])


def test_build_refuses_two_tools_of_one_name():
    with pytest.raises(ToolSetupError, match=r"tools\[1\]: a second tool named 'python'"):
        build([PythonSettings(backend="monty"), PythonSettings(backend="monty")])


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    def write(source: str) -> None:
        (tmp_path / "user_tool_for_test.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("user_tool_for_test", None)

    yield write
    sys.modules.pop("user_tool_for_test", None)


async def test_an_imported_tool_gets_its_options_and_limits(user_module):
    user_module("""
        from arpo.tools import ToolResult, ToolStatus
        class Shout:
            name, description = "shout", "shouts"
            parameters = {"type": "object"}
            def __init__(self, mark): self.mark = mark
            async def call(self, arguments, context): return ToolResult(ToolStatus.OK, "HEY" + self.mark)
    """)
    box = build([ImportSettings(path="user_tool_for_test:Shout", options={"mark": "!"}, timeout=3)])
    assert (await box.call("shout", {}, ToolContext())).text == "HEY!"
    assert box.limits["shout"].timeout == 3


@pytest.mark.parametrize(
    ("source", "path", "cause"),
    [
        ("", "no_such_module_xyz:make", "ModuleNotFoundError: No module named 'no_such_module_xyz'"),
        ("import no_such_thing_abc", "user_tool_for_test:make", "No module named 'no_such_thing_abc'"),
        ("1/0", "user_tool_for_test:make", "ZeroDivisionError"),
        ("", "user_tool_for_test:make", "AttributeError"),
        ("def make(wrong): pass", "user_tool_for_test:make", "TypeError"),
    ],
)
def test_a_tool_that_fails_to_import_stops_the_run(user_module, source, path, cause):
    user_module(source)
    with pytest.raises(ToolSetupError) as caught:
        build([ImportSettings(path=path)])
    for part in (path, cause, "check that"):
        assert part in str(caught.value)


def test_a_factory_that_makes_no_tool(user_module):
    user_module("def make(): return 5")
    with pytest.raises(ToolSetupError, match="lacks name, description, parameters, call"):
        build([ImportSettings(path="user_tool_for_test:make")])


def test_parameters_must_be_a_schema():
    with pytest.raises(ToolSetupError, match="tool 'bad': its `parameters` are no JSON schema"):
        ToolBox([make("bad", echo, {"type": "nonsense"})])
