"""`arpo bench tools` on tiny sizes: rows for programs, tables for people, errors for mistakes."""

import json
import math
from functools import partial

import pytest

from arpo.bench import tools_arms
from arpo.bench.tools import BACKENDS, SandboxRow, SandboxSetting, _Measured, _row, measure_sandboxes, percentile
from arpo.bench.tools_arms import ProcessArm, opened
from arpo.bench.tools_search import SearchRow
from arpo.cli import main
from arpo.errors import ArpoError, ConfigError, ToolSetupError
from arpo.tools.sandbox import ladder

TINY = ("--rounds", "2", "--calls", "2", "--slow-calls", "1", "--parallel", "2")


@pytest.fixture
def no_bwrap(monkeypatch):
    """Nor packages, which take a second to import."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(tools_arms, "CODE", tools_arms.SIMPLE)
    monkeypatch.setattr(tools_arms.ladder, "choose", partial(ladder.choose, preload=()))


def search_rows(passages, queries, **rest):
    """In place of a real measurement, which has its own test."""
    figures = dict.fromkeys(SearchRow.__dataclass_fields__, 1.5)
    sizes = {"passages": passages, "queries": queries, "processes": 2, "top_k": 10, "cached": False}
    return [SearchRow(**figures | sizes | {"kind": kind}) for kind in ("bm25s", "tantivy")]


def test_rows_and_tables(tmp_path, capsys, no_bwrap, monkeypatch):
    monkeypatch.setattr("arpo.bench.tools_search.measure", search_rows)
    out = tmp_path / "rows.json"
    code = main(
        [
            "bench",
            "tools",
            *TINY,
            "--backends",
            "monty,bwrap",
            "--passages",
            "300",
            "--queries",
            "5",
            "--json",
            str(out),
        ]
    )
    said = capsys.readouterr()
    assert code == 0
    assert "round 2 of 2" in said.err
    plain, monty, bwrap, *searches = json.loads(out.read_text())
    assert (plain["backend"], plain["ratio"], plain["ratio_together"]) == ("subprocess", 1.0, 1.0)
    assert (monty["isolation"], bwrap["note"], bwrap["calls_per_s"]) == ("interpreter", "not installed", None)
    assert monty["ratio_least"] <= monty["ratio"] <= monty["ratio_most"]
    assert monty["ratio"] > 1
    assert plain["cpu_ms"] > 1
    assert (plain["calls"], monty["calls"], monty["rounds"], monty["parallel"]) == (1, 2, 2, 2)
    for row in (plain, monty):
        assert all(math.isfinite(value) and value >= 0 for value in row.values() if isinstance(value, int | float))
    assert [row["kind"] for row in searches] == ["bm25s", "tantivy"]
    text = " ".join(said.out.split())
    for shown in ("subprocess", "2 at once", "bwrap not installed", "bm25s", "300 passages", "2 together"):
        assert shown in text


def test_a_sandbox_of_this_machine(no_bwrap):
    setting = SandboxSetting(backends=("namespace", "landlock"), rounds=1, calls=1, slow_calls=1, parallel=1)
    plain, *rows = measure_sandboxes(setting, lambda _: None)
    assert plain.backend == "subprocess"
    assert {row.backend for row in rows} == {"namespace", "landlock"}
    for row in rows:
        assert row.note or (row.isolation == row.backend and row.ratio > 0 and row.cpu_ms > 0)


def test_medians_and_spreads():
    ours = _Measured([20.0, 30.0, 40.0], [10.0, 10.0, 40.0], [0.1, 0.2], [0.3], [])
    theirs = _Measured([2.0, 2.0, 2.0], [1.0, 2.0, 1.0], [0.5], [0.5], [0.4])
    row = _row(ProcessArm("x", "none"), 1.5, ours, theirs, SandboxSetting(rounds=3))
    assert (row.ratio, row.ratio_least, row.ratio_most) == (15.0, 10.0, 20.0)
    assert (row.ratio_together, row.ratio_together_least, row.ratio_together_most) == (10.0, 5.0, 40.0)
    assert (row.calls_per_s, row.p50_ms, row.cpu_ms, row.seconds_start) == (30.0, 200.0, None, 1.5)
    assert isinstance(row, SandboxRow)
    assert percentile([0.001 * n for n in range(100)], 0.95) == pytest.approx(95.0)


async def test_a_wrong_answer_is_no_measurement():
    with pytest.raises(ArpoError, match="a run gave"):
        await ProcessArm("echo", "none", ["/bin/echo"]).call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what", "browser"], "name sandbox or search"),
        (["--what", "sandbox", "--backends", "docker"], "known are"),
        (["--what", "sandbox", "--rounds", "0"], "--rounds 0: at least one"),
        (["--what", "sandbox", "--slow-calls", "0"], "--slow-calls 0: at least one"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert main(["bench", "tools", *arguments]) == ConfigError.exit_code
    assert message in " ".join(capsys.readouterr().err.split())


def test_what_is_not_installed(no_bwrap):
    assert "bwrap" in BACKENDS
    with pytest.raises(ToolSetupError, match="not installed"):
        opened("bwrap")
