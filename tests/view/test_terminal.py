"""The terminal's picture of a tree says what happened and obeys nothing that a model or a tool wrote."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from rollout_fakes import ToyTool, by_turn, decode, grow, toolbox

from arpo.rollout.settings import BernoulliRule, NoBranching, RolloutSettings
from arpo.task import ask
from arpo.tools.base import ToolResult, ToolStatus
from arpo.tree import Outcome, RolloutTree
from arpo.view.terminal import BARS, render_tree, sparkline, tree_json, visible

ARPO = RolloutSettings(total=3, initial=2, max_tokens=400)
DOUBTS = by_turn("abcd<s>q</s>", [("abcd", 1.5), ("efgh[42]$", 0.0)])


def printed(tree: RolloutTree, cut: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=300, color_system=None).print(render_tree(tree, decode, width=cut))
    return out.getvalue()


async def test_picture_shows_calls_results_entropy_decisions_and_rewards() -> None:
    tree = await grow(DOUBTS, ARPO)
    scored = tree.with_outcomes(
        [Outcome(1.1, "42", {"accuracy": 1.0, "multi_tool": 0.1}), Outcome(-1.0, None), Outcome(None)]
    )
    shown = printed(scored)
    assert "why?  gold answer: 42" in shown
    assert '→ search {"text": "q"}  ok' in shown
    assert "← {Q}" in shown
    assert "████ abcd" in shown
    assert "▁▁▁▁▁▁▁▁▁ efgh[42]$" in shown
    assert "◆ 1 of 1 branches opened  H 0.100 → 1.500 nats, ΔH +0.2885  P 0.5577 > 0.5" in shown
    assert "◆ 0 of 1 branches opened" in shown
    assert "budget spent" in shown
    assert "● reward +1.10  answer 42  accuracy 1, multi_tool 0.1" in shown
    assert "● reward -1.00  no answer" in shown
    assert "● no reward" in shown
    assert "3 trajectories: 2 from the prompt, 1 from branches" in shown
    assert shown.count("abcd<s>q</s>") == 2, "what trajectories share is printed once"


async def test_unscored_and_unfinished_trajectories_say_so() -> None:
    settings = RolloutSettings(total=2, initial=2, branching=NoBranching(), max_tokens=20)
    shown = printed(await grow(by_turn("<s></s>", "x" * 400), settings))
    assert "● not scored  ended: length" in shown
    assert "→ malformed call" in shown
    assert "not executed" in shown


async def test_failure_shows_its_call_and_no_text() -> None:
    broken = ToyTool("search", reply=lambda text: ToolResult(ToolStatus.INFRA_ERROR, "trace"))
    shown = printed(await grow(DOUBTS, ARPO, tools=toolbox(broken)))
    assert '→ search {"text": "q"}  infra_error' in shown
    assert "ended: error" in shown


async def test_what_a_model_or_a_tool_writes_is_not_obeyed() -> None:
    hostile = ToyTool("search", reply=lambda text: "\x1b[2J[bold red]markup[/bold red]\u202egnp\x07")
    keep = toolbox(hostile)
    settings = RolloutSettings(total=1, initial=1, branching=NoBranching())
    tree = await grow(by_turn("\x1b[31m<s>q\x9b</s>", "[a\x1b]$"), settings, tools=keep, task=ask("\x1b]0;x\x07?", "1"))
    shown = printed(tree)
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
    assert "⟨U+001B⟩[31m" in shown
    assert "[bold red]markup[/bold red]" in shown


def test_visible_keeps_text_and_names_what_is_hidden() -> None:
    assert visible("Zürich 東京 🙂") == "Zürich 東京 🙂"
    assert visible("a\nb\tc") == "a⏎b c"
    assert visible("\x00\x7f\u2066\u2028\ud800") == "⟨U+0000⟩⟨U+007F⟩⟨U+2066⟩⟨U+2028⟩⟨U+D800⟩"


def test_sparkline_scale_and_width() -> None:
    assert sparkline(np.array([0.0, 1.5, 9.0])) == BARS[0] + BARS[-1] * 2
    assert sparkline(np.array([0.375])) == BARS[round(0.5 * 7)]
    assert len(sparkline(np.zeros(1000))) == 24
    assert sparkline(np.empty(0)) == ""


async def test_long_texts_are_cut_in_the_middle() -> None:
    long = ToyTool("search", reply=lambda text: "H" * 500 + "T" * 500)
    settings = RolloutSettings(total=1, initial=1, branching=NoBranching())
    shown = printed(await grow(by_turn("<s>q</s>", "[4]$"), settings, tools=toolbox(long)), cut=20)
    assert "HHHH … 922 characters … TTTT" in shown


async def test_json_holds_everything_and_is_strict_json() -> None:
    coin = ARPO.model_copy(update={"branching": BernoulliRule(base_probability=1.0, entropy_weight=0.0)})
    tree = (await grow(DOUBTS, coin)).with_outcomes([Outcome(1.0, "42", {"accuracy": 1.0})] * 2 + [Outcome(None)])
    plain = json.loads(json.dumps(tree_json(tree, decode), allow_nan=False))
    assert (plain["task"], plain["question"], plain["answers"]) == ("toy", "why?", ["42"])
    assert [node["parent"] for node in plain["nodes"]] == [segment.parent for segment in tree.segments]
    assert "".join(node["text"] for node in plain["nodes"][:3]) == "why?abcd<s>q</s>{Q}"
    assert plain["nodes"][2]["event"]["name"] == "search"
    assert [leaf["reward"] for leaf in plain["leaves"]] == [1.0, 1.0, None]
    assert plain["decisions"][0]["opened"] in (0, 1)
    asked = tree_json(tree, decode, ask("how?", "1", "2"))
    assert (asked["question"], asked["answers"]) == ("how?", ["1", "2"])


async def test_json_has_null_where_nothing_was_measured() -> None:
    settings = RolloutSettings(total=1, initial=1, branching=NoBranching())
    plain = tree_json(await grow(by_turn("<s>q</s>", "[4]$"), settings), decode)
    assert plain["decisions"][0]["probability"] is None
    assert plain["decisions"][0]["h_tool"] == pytest.approx(0.1)
