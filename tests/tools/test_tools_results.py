"""Results that are none, tools that cannot be closed, and the limits that settings give to the tools that are there."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from tool_fakes import HERE, ask, box, tasks_left, tool_threads

from arpo.tools.base import ToolResult, ToolStatus
from arpo.tools.registry import build
from arpo.tools.sandbox.monty import MontySandbox
from arpo.tools.sandbox.tool import PythonTool
from arpo.tools.search import Document, LocalSource, SearchIndex, SearchTool
from arpo.tools.settings import ImportSettings, PythonSettings, SearchSettings
from arpo.tools.toolbox import Limit, ToolBox


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("garbage", "cause"),
    [
        (None, "type NoneType"),
        (b"bytes", "type bytes"),
        (17, "type int"),
        (ToolResult(ToolStatus.OK, None), "`text` is of type NoneType"),
        (ToolResult(ToolStatus.OK, b"bytes"), "`text` is of type bytes"),
        (ToolResult("splendid", "x"), "'splendid' is not a valid ToolStatus"),
        (ToolResult(ToolStatus.OK, "x", data=None), "`data` is of type NoneType"),
        (ToolResult(ToolStatus.OK, "x", cached="yes"), "`cached` is of type str"),
        (ToolResult(ToolStatus.OK, "x", score=float("nan")), "`score` is nan"),
        (ToolResult(ToolStatus.OK, "x", score="high"), "TypeError"),
    ],
)
async def test_garbage_is_an_infrastructure_error_that_says_why(garbage, cause):
    async def call(arguments, context):
        return garbage

    tools = box(call)
    result = await ask(tools)
    assert (result.status, result.text) == (ToolStatus.INFRA_ERROR, "")
    assert cause in result.data["error"]
    assert tools.stats["t"].infra_errors == 1


@pytest.mark.parametrize("returned", ["plain", ToolResult("ok", "plain", score=2)])
async def test_a_plain_text_is_a_success(returned):
    async def call(arguments, context):
        return returned

    result = await ask(box(call))
    assert (result.status, result.text) == (ToolStatus.OK, "plain")


async def test_an_exception_that_cannot_be_printed_or_is_endless():
    async def unprintable(arguments, context):
        raise UnprintableError

    async def endless(arguments, context):
        raise ValueError("x" * 10_000_000)

    assert (await ask(box(unprintable))).data["error"] == "UnprintableError"
    assert len((await ask(box(endless))).data["error"]) <= 500


async def test_50_megabytes_of_control_characters_are_cut_before_they_are_cleaned():
    async def call(arguments, context):
        return "\x1b[2J\x00" * 10_000_000

    result = await ask(box(call, max_chars=300))
    assert result.status is ToolStatus.OK
    assert len(result.text) <= 300
    assert "\x1b" not in result.text
    assert "\x00" not in result.text


async def test_a_tool_whose_close_fails_or_hangs_does_not_keep_the_others_open(monkeypatch, caplog):
    monkeypatch.setattr("arpo.tools.toolbox.PATIENCE", 0.05)
    closed = []

    async def fails():
        raise OSError("no such socket")

    async def hangs():
        await asyncio.sleep(60)

    async def call(arguments, context):
        return "x"

    closes = {"fails": fails, "hangs": hangs, "plain": lambda: closed.append("plain")}
    tools = ToolBox([SimpleNamespace(name=n, parameters={}, call=call, close=c) for n, c in closes.items()])
    with caplog.at_level(logging.WARNING):
        await tools.close()
    assert closed == ["plain"]
    assert "tool fails: closing it failed: OSError: no such socket" in caplog.text
    assert "tool hangs: closing it failed: TimeoutError" in caplog.text
    assert not tasks_left()


@pytest.mark.parametrize("kind", [SearchSettings, PythonSettings, lambda **more: ImportSettings(path="a:b", **more)])
def test_every_tool_has_the_same_limits(kind):
    settings = kind(timeout=3, max_chars=500, concurrency=4, rate=2.5)
    assert (settings.timeout, settings.max_chars, settings.concurrency, settings.rate) == (3, 500, 4, 2.5)
    for wrong in ({"concurrency": 0}, {"rate": 0}, {"rate": float("inf")}, {"timeout": float("nan")}):
        with pytest.raises(ValidationError):
            kind(**wrong)


async def test_limits_of_the_settings_reach_the_tool():
    tools = build([PythonSettings(backend="monty", concurrency=2, rate=7.0, timeout=3.0, max_chars=400)])
    assert tools.limits["python"] == Limit(timeout=3.0, max_chars=400, concurrency=2, rate=7.0)
    await tools.close()


async def test_an_imported_tool_may_block_and_say_that_it_is_stateless(tmp_path, monkeypatch):
    (tmp_path / "plain_tool_for_test.py").write_text(
        "class Plain:\n"
        "    name, description, parameters, stateless = 'plain', 'is plain', {'type': 'object'}, True\n"
        "    def call(self, arguments, context): return 'plainly'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tools = build([ImportSettings(path="plain_tool_for_test:Plain", concurrency=1)])
    assert tools.tools[0].stateless
    assert (await tools.call("plain", {}, HERE)).text == "plainly"
    assert tool_threads() == ["tool plain"]
    await tools.close()


async def test_search_says_how_well_its_results_fit(tmp_path):
    index = SearchIndex.build([Document("1", "Chad", "dry"), Document("2", "Mali", "dry and hot")], tmp_path / "index")
    search = SearchTool(LocalSource(index), top_k=2, shuffle=True)
    hits = index.query("hot dry", 2)
    found, missed = [await search.call({"query": query}, HERE) for query in ("hot dry", "snow")]
    assert found.score == max(hit.score for hit in hits) > 0
    assert (found.empty, missed.score, missed.empty) == (False, 0.0, True)
    assert (SearchTool.stateless, PythonTool.stateless) == (True, True)


async def test_code_that_prints_nothing_has_an_empty_result():
    python = PythonTool(MontySandbox())
    assert [(await python.call({"code": code}, HERE)).empty for code in ("x = 1", "1", "print()")] == [
        True,
        False,
        True,
    ]
    await python.close()


async def test_slow_code_waits_for_a_core_off_the_clock(monkeypatch):
    """With one core to run on, the five calls run one after another, and the four that wait are not late for it."""
    monkeypatch.setattr("arpo.tools.sandbox.monty._CORES", 1)
    python = PythonTool(MontySandbox(quick=0.001), PythonSettings(timeout=3))
    tools = ToolBox([python], {"python": Limit(timeout=3)})
    code = "x = 0\nwhile x < 150000:\n    x += 1\nx"
    results = await asyncio.gather(*(tools.call("python", {"code": code}, HERE) for _ in range(5)))
    assert [r.text for r in results] == ["150000"] * 5
    assert tools.stats["python"].waited > max(r.latency for r in results)
    await tools.close()
