"""Latencies: the distribution that was asked for, the same for every arm, and nothing else changed about the tools."""

import asyncio
import time

import numpy as np
import pytest
from rollout_fakes import ToyTool

from arpo.bench.rollout_tools import HEAVY, DelayedTool, Latency, delayed, parse_latency
from arpo.errors import ConfigError
from arpo.tools.base import ToolContext
from arpo.tools.toolbox import Limit, ToolBox


def test_heavy_latency_has_a_median_of_50_ms_and_a_p99_of_2_s() -> None:
    assert HEAVY.quantile(0.5) == pytest.approx(0.05)
    assert HEAVY.quantile(0.99) == pytest.approx(2.0)
    drawn = [HEAVY.at(7, f"task/{n % 500}", f"r{n // 500}", 0) for n in range(20_000)]
    assert np.median(drawn) == pytest.approx(0.05, rel=0.05)
    assert np.quantile(drawn, 0.99) == pytest.approx(2.0, rel=0.15)
    assert min(drawn) > 0


def test_latency_is_a_function_of_the_place() -> None:
    assert HEAVY.at(1, "t", "r0", 0) == HEAVY.at(1, "t", "r0", 0)
    places = [(1, "t", "r0", 0), (2, "t", "r0", 0), (1, "u", "r0", 0), (1, "t", "r1", 0), (1, "t", "r0", 1)]
    assert len({HEAVY.at(*place) for place in places}) == len(places)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("50ms", 0.05), (" 1.5s ", 1.5), ("0s", 0.0)])
def test_fixed_times(text: str, seconds: float) -> None:
    latency = parse_latency(text)
    assert latency.at("anywhere") == latency.quantile(0.99) == seconds
    assert latency.name == text.strip()


@pytest.mark.parametrize("text", ["50", "fast", "", "-1s", "50 ms", "heavy2"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--tools"):
        parse_latency(text)


async def test_a_delayed_tool_answers_like_the_tool_after_its_wait() -> None:
    tool = ToyTool("search")
    box = delayed(ToolBox([tool], {"search": Limit(timeout=0.04, max_chars=321)}), Latency("60ms", 0.06))
    assert box.limits["search"].max_chars == 321
    started = time.perf_counter()
    result = await box.call("search", {"text": "abc"}, ToolContext("t", "r0", 3, 0))
    assert time.perf_counter() - started >= 0.06, "the wait is not cut by the tool's own time limit"
    assert result.text == "ABC"
    assert [text for text, _ in tool.calls] == ["abc"]


async def test_calls_wait_side_by_side_and_each_as_long_as_its_place_says() -> None:
    order: list[str] = []

    class Noting(ToyTool):
        async def call(self, arguments, context):  # type: ignore[no-untyped-def]
            order.append(context.path)
            return await super().call(arguments, context)

    latency = Latency("wide", 0.01, 1.0)
    contexts = [ToolContext("t", f"r{n}", 0, 0) for n in range(6)]
    box = delayed(ToolBox([Noting("search")]), latency)
    await asyncio.gather(*(box.call("search", {"text": "x"}, context) for context in contexts))
    expected = sorted(contexts, key=lambda one: latency.at(one.seed, one.task_id, one.path, one.call_index))
    assert order == [one.path for one in expected]


def test_what_the_tool_says_of_itself_is_kept() -> None:
    tool = ToyTool("search")
    assert DelayedTool(tool, ToolBox([tool]), HEAVY).stateless is False
    tool.stateless = True  # type: ignore[attr-defined]
    slow = DelayedTool(tool, ToolBox([tool]), HEAVY)
    assert (slow.name, slow.description, slow.parameters, slow.stateless) == ("search", "a toy", tool.parameters, True)
    assert not hasattr(slow, "close"), "the box of one run must not close the tools of all"
