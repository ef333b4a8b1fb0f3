"""`arpo benchmarks` through the command line."""

import json

import pytest

from arpo.cli.app import run

ROW = {"Question": "Who? \x1b[31m", "answer": "Ann [bold]", "Level": 1, "task_id": "t1"}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "GAIA").mkdir()
    (tmp_path / "GAIA" / "dev.json").write_text(json.dumps([ROW]))
    return str(tmp_path)


def test_list(capsys, monkeypatch, root):
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["benchmarks", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert lines[4].split()[:5] == ["gsm8k", "1,319", "hybrid", "hybrid", "openai/gsm8k/main@test"]
    assert run(["benchmarks", "list", "--files", root]) == 0
    held = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert (held["gaia"], held["hle"], len(held)) == ("1", "-", 14)


def test_list_as_json(capsys, root):
    assert run(["benchmarks", "list", "--json", "--files", root]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert len(entries) == 14
    assert (entries["gaia"]["found"], entries["gaia"]["edition"], entries["gaia"]["gated"]) == (1, "", True)
    assert entries["xbench"]["encrypted"]
    assert "found" not in entries["hle"]


def test_show(capsys, root):
    assert run(["benchmarks", "show", "GAIA", "--files", root]) == 0
    shown = capsys.readouterr().out
    assert "gaia-benchmark/GAIA/2023_all@validation" in shown
    assert "Ann [bold]" in shown
    assert "\x1b[31m" not in shown
    assert run(["benchmarks", "show", "hle", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == "questions without an image"


def test_mistakes(capsys, tmp_path):
    assert run(["benchmarks", "show", "hle2"]) == 2
    assert "did you mean hle?" in capsys.readouterr().err
    assert run(["benchmarks", "list", "--files", str(tmp_path / "none")]) == 2
    assert "no such folder of benchmark files" in capsys.readouterr().err
