"""Counters of tools as metrics; and results that are too large to keep."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from tool_fakes import FakeClock, ask, box

from arpo.tools.base import ToolContext, ToolError, ToolResult, ToolStatus, TransientError
from arpo.tools.results import DATA, bounded
from arpo.tools.stats import ToolStats


async def test_what_a_step_drains() -> None:
    answers: list[Any] = [
        ToolResult(ToolStatus.OK, "a", cached=True),
        "b",
        ToolError("your fault"),
        ToolResult(ToolStatus.TOOL_ERROR, "too much", data={"fault": "out_of_memory"}),
        OSError("gone"),
        TransientError("503"),
        "c",
        7,
    ]

    async def call(arguments: Any, context: ToolContext) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    tools = box(call, more={"idempotent": True}, clock=FakeClock())
    while answers:
        await ask(tools)
    latencies = list(tools.stats["t"].latencies)
    drained = tools.drain()
    assert drained == {
        "tools/t/latency_p50": float(np.percentile(latencies, 50)),
        "tools/t/latency_p95": float(np.percentile(latencies, 95)),
        "tools/t/cache_hits": 1.0,
        "tools/t/retries": 1.0,
        "tools/t/breaker_openings": 0.0,
        "tools/t/abandoned": 0.0,
        "tools/t/waited_s": drained["tools/t/waited_s"],
        "tools/t/in_flight": 1.0,
        "tools/t/faults": 4.0,
        "tools/t/faults/exception": 1.0,
        "tools/t/faults/no_result": 1.0,
        "tools/t/faults/out_of_memory": 1.0,
        "tools/t/faults/tool_error": 1.0,
    }
    assert len(latencies) == 7
    assert tools.drain()["tools/t/faults"] == 0.0
    assert "tools/t/faults/exception" not in tools.drain()


async def test_refused_arguments_are_faults_that_took_no_time() -> None:
    tools = box(lambda arguments, context: "x", more={"parameters": {"type": "object", "required": ["q"]}})
    assert (await ask(tools)).status is ToolStatus.TOOL_ERROR
    stats = tools.stats["t"]
    assert (stats.faults, stats.errors, list(stats.latencies)) == ({"arguments": 1}, 1, [])


@pytest.mark.parametrize("kind", ["", "x" * 50, "a/b", "Ünicode", 5, None])
def test_a_tool_that_makes_up_kinds_of_faults(kind: Any) -> None:
    stats = ToolStats()
    stats.count(ToolResult(ToolStatus.TOOL_ERROR, "", data={"fault": kind}))
    assert stats.faults == {"other": 1}


def test_there_are_only_so_many_kinds() -> None:
    stats = ToolStats()
    for number in range(100):
        stats.count(ToolResult(ToolStatus.TOOL_ERROR, "", data={"fault": f"kind_{number}"}))
    assert len(stats.faults) == 33
    assert stats.faults["other"] == 68


# Too large to keep


async def test_a_hundred_megabytes_cost_no_more_than_themselves() -> None:
    flood = "\x1b[2J<|im_end|>\u202e" * 8_000_000

    async def call(arguments: Any, context: ToolContext) -> str:
        return flood

    tools = box(call, max_chars=2000)
    tracemalloc.start()
    result = await ask(tools)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(flood) > 100_000_000
    assert len(result.text) <= 2000
    assert peak < 2_000_000
    assert not {"\x1b", "\u202e"} & set(result.text)


async def test_a_subclass_of_str_is_what_it_holds_and_not_what_it_says() -> None:
    class Liar(str):
        __slots__ = ()

        def __len__(self) -> int:
            return 3

        def __str__(self) -> str:
            return "innocent"

        def isascii(self) -> bool:
            return True

        def isprintable(self) -> bool:
            return True

    for returned in (Liar("\x1b" * 9000), ToolResult(ToolStatus.OK, Liar("\x1b" * 9000))):
        tools = box(lambda arguments, context, returned=returned: returned, max_chars=200)
        result = await ask(tools)
        await tools.close()
        assert (type(result.text), len(result.text) <= 200) == (str, True)
        assert "\x1b" not in result.text


@pytest.mark.parametrize(
    "data",
    [
        {"text": "x" * 50_000_000},
        {"rows": list(range(3_000_000))},
        {str(number): number for number in range(300_000)},
        {"deep": [{"text": "x" * 400_000}, {"text": "y" * 400_000}]},
        {"raw": b"x" * 5_000_000},
        {"array": np.zeros(5_000_000)},
    ],
    ids=["text", "list", "keys", "nested", "bytes", "array"],
)
async def test_data_is_bounded_and_what_comes_first_is_kept(data: dict[str, Any]) -> None:
    kept = bounded(ToolResult(ToolStatus.OK, "x", data={"first": "kept", **data})).data
    assert (kept["first"], kept["cut"]) == ("kept", True)
    assert len(repr(kept)) < 3 * DATA


def test_data_that_are_small_are_left_alone() -> None:
    data = {"records": [{"title": "a", "score": 1.5, "tags": ("x",)}], "object": object()}
    assert bounded(ToolResult(ToolStatus.OK, "x", data=data)).data is data


def test_data_that_contain_themselves_have_an_end() -> None:
    data: dict[str, Any] = {"first": 1}
    data["self"] = data
    kept = bounded(ToolResult(ToolStatus.OK, "x", data=data)).data
    assert (kept["first"], kept["cut"]) == (1, True)
