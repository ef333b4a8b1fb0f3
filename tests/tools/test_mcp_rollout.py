"""ARPO rollouts of a script whose tools are an MCP server's: branches, state per trajectory, a server that dies."""

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import rollout_fakes
from rollout_fakes import by_turn, current, grow, steps, texts

from arpo.engine.scripted import Scripted
from arpo.errors import ConfigError
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.tools.mcp.settings import McpSettings
from arpo.tools.registry import build
from arpo.tools.toolbox import ToolBox
from arpo.tree import Finish

pytest.importorskip("mcp")
PLAIN = str(Path(__file__).parents[1] / "support" / "mcp_plain_server.py")
ARPO = RolloutSettings(total=6, initial=3, max_tokens=400)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy dialect calls the server's tools."""
    for tag, name in {"s": "echo", "p": "remember", "d": "die"}.items():
        monkeypatch.setitem(rollout_fakes.TOOLS, tag, name)
    monkeypatch.setattr(rollout_fakes.ToyDialect, "stop", ("</s>", "</p>", "</d>"))


def server(log: Path, **more: Any) -> ToolBox:
    one = {"command": sys.executable, "args": ["-I", "-S", PLAIN], "env": {"PLAIN_LOG": str(log)}}
    return build([McpSettings.model_validate({"server": one, "tools": ["echo", "remember", "die"], **more})])


def lines(log: Path, first: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith(first)]


async def test_equal_calls_run_once_and_branches_read_the_servers_text(tmp_path: Path) -> None:
    box = server(tmp_path / "log")
    doubts = by_turn("abcd<s>query</s>", [("abcd", 5.0), ("efgh[42]$", 0.1)])
    tree = await grow(doubts, ARPO, tools=box, entropy=EntropySettings(window=4))
    await box.close()
    assert sum(decision.opened for decision in tree.decisions) == 3
    assert texts(tree) == ["why?abcd<s>query</s>{query}abcdefgh[42]$"] * 6
    assert len(lines(tmp_path / "log", "echo")) == 1
    assert tree.requested_calls == 3


def note_taker(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
    """Tells the server a letter three times, another one in every trajectory, in doubt after each result."""
    turn, said = current(prefix)
    doubt = 5.0 if turn else 0.1
    turns = [[("....", doubt), (f"<p>{'abcdefgh'[seed % 8]}</p>", 0.1)]] * 3 + [[("....", doubt), ("[42]$", 0.1)]]
    return steps(turns[turn])[said:]


async def test_every_trajectory_has_the_server_to_itself(tmp_path: Path) -> None:
    box = server(tmp_path / "log", stateful=True)
    tree = await grow(note_taker, ARPO, tools=box)
    await box.close()
    assert sum(decision.opened for decision in tree.decisions) == 3
    for text in texts(tree):
        calls = [(part[0], part[part.index("{") + 1 : part.index("}")]) for part in text.split("<p>")[1:]]
        letters = [letter for letter, _ in calls]
        assert [shown for _, shown in calls] == [" ".join(letters[: n + 1]) for n in range(3)]
    started = [int(line.split()[1]) for line in lines(tmp_path / "log", "start")]
    assert 1 + 3 <= len(started) <= 1 + 6
    assert not [pid for pid in started if psutil.pid_exists(pid)]


async def test_a_state_that_may_not_be_replayed_refuses_branching(tmp_path: Path) -> None:
    box = server(tmp_path / "log", stateful=True, fork="refuse")
    with pytest.raises(ConfigError, match="remember"):
        await grow(note_taker, ARPO, tools=box)
    await box.close()


async def test_a_server_that_dies_costs_the_trajectories_that_called_and_no_others(tmp_path: Path) -> None:
    """Some call what kills the server; the others' calls are made again, after it has been started again."""

    def continuation(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
        turn, said = current(prefix)
        tag = "d" if seed % 3 == 0 else "s"
        return steps([f"ab<{tag}>{seed % 1000}</{tag}>", "[42]$"][turn])[said:]

    box = server(tmp_path / "log", retries=5)
    tree = await grow(
        continuation,
        RolloutSettings.model_validate({"total": 8, "initial": 8, "branching": {"type": "none"}, "max_tokens": 400}),
        tools=box,
    )
    await box.close()
    dead = [text for text in texts(tree) if "<d>" in text]
    alive = [text for text in texts(tree) if "<s>" in text]
    assert (len(dead) + len(alive), len(dead) > 0, len(alive) > 0) == (8, True, True)
    assert all("{" not in text for text in dead)
    assert all(text.endswith("}[42]$") for text in alive)
    assert [tree.segments[leaf].finish for leaf in tree.leaves].count(Finish.ERROR) == len(dead)
