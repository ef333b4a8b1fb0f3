"""TRL's side of `make bench-trl`: it speaks the pocket policy's language, and a tiny comparison runs to its rows."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("trl")
pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return importlib.import_module("trl_side")


@pytest.fixture
def bench(side: ModuleType) -> ModuleType:
    return importlib.import_module("trl_bench")


@pytest.fixture(scope="module")
def policy() -> Any:
    from arpo.config.load import load
    from arpo.config.wire import build_policy

    return build_policy(load([], ["model.path=pocket", "model.device=cpu"], environ={}).config)


def test_prompts_and_results_are_the_policys_tokens(side: ModuleType, policy: Any) -> None:
    from arpo.data.factbook.questions import make_tasks

    for task in make_tasks("train", 20, 0):
        policy.tokenizer.chat_template = side.CHAT_TEMPLATE
        side.check_tokens(policy.tokenizer, policy.agent.dialect, task)
        policy.tokenizer.chat_template = side.CHAT_TEMPLATE.replace("<result> ", "<result>")
        with pytest.raises(ValueError, match="tool result"):
            side.check_tokens(policy.tokenizer, policy.agent.dialect, task)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<think> go</think><search> area of Peru</search>", [("search", "area of Peru")]),
        ("<python> 1 + 1</python>", [("python", "1 + 1")]),
        ("<think> 5</think><answer> \\boxed{ 5 }</answer><eos>", []),
    ],
)
def test_calls_are_found(side: ModuleType, policy: Any, text: str, calls: list[tuple[str, str]]) -> None:
    """Those of the last turn alone, although the prefix holds earlier ones."""
    from trl.chat_template_utils import parse_response

    tokenizer = policy.tokenizer
    tokenizer.response_template = side.RESPONSE_TEMPLATE
    prefix = " What?<search> before</search><result> this</result>"
    ids = [tokenizer.encode(part, add_special_tokens=False) for part in (text, prefix)]
    message = parse_response(tokenizer, ids[0], prefix=ids[1], tools=side.Tools(policy.agent.toolbox).functions())
    found = [call["function"] for call in message.get("tool_calls", [])]
    assert [(call["name"], call["arguments"]["text"]) for call in found] == calls
    if not calls:
        assert policy.agent.dialect.answer(message["content"]) == "5"


def test_tools_are_ours_and_their_calls_are_counted(side: ModuleType, policy: Any) -> None:
    tools = side.Tools(policy.agent.toolbox)
    search, python = tools.functions()
    assert "Peru" in search(" Peru capital")
    assert python(" 6 * 7") == "42"
    assert "Wrong arguments" in search("")
    assert tools.calls == 3


def test_a_tiny_comparison(bench: ModuleType, side: ModuleType) -> None:
    from arpo.data.factbook.questions import make_tasks

    job = side.Job(
        tasks=make_tasks("train", 4, 0), prompts=2, group=4, max_tokens=60, max_calls=2, steps=2, lr=1e-6, micro_rows=8
    )
    grpo, arpo = bench.compare(job, "0")
    assert (grpo.group, arpo.group) == ("4+0", "2+2")
    for row in (grpo, arpo):
        assert (row.versus, row.rounds, row.prompts) == ("trl", 1, 2)
        assert row.ratio > 0
        assert 0 < row.seconds_rollout <= row.seconds
        assert 0 < row.seconds_rollout_versus < row.seconds_versus
        assert row.calls_requested_versus > 0
        assert row.computed_over_unique_versus > 1.2
        assert 5 < row.tokens_per_trajectory_versus <= 60
        assert row.trajectories_per_s == pytest.approx(8 / row.seconds)
