"""The folder of an evaluation, the comparison of two, and the report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from eval_world import Adder, Exactly, ledger, questions, runner, sample

from arpo.errors import ConfigError, DataError
from arpo.evaluate.against import against
from arpo.evaluate.figures import Questions, figures
from arpo.evaluate.folder import opened
from arpo.evaluate.ledger import SAMPLES
from arpo.evaluate.results import Results, SetResult
from arpo.evaluate.settings import PriceSettings
from arpo.reward.verdict import Verdict

SAMPLING = {"model.path": "pocket", "evaluation.seed": 0, "tools": ("search",)}


def test_a_folder_belongs_to_one_way_of_sampling(tmp_path: Path) -> None:
    with opened(tmp_path / "e", SAMPLING) as attempt:
        assert attempt == 0
    with opened(tmp_path / "e", SAMPLING) as attempt:
        assert attempt == 1
    with (
        pytest.raises(ConfigError, match=r"model\.path: was 'pocket', is 'other'"),
        opened(tmp_path / "e", SAMPLING | {"model.path": "other"}),
    ):
        pass
    kept = json.loads((tmp_path / "e" / "run.json").read_text())
    assert (kept["sampling"]["model.path"], len(kept["attempts"])) == ("pocket", 2)


def test_overwriting_starts_anew_but_only_what_is_ours(tmp_path: Path) -> None:
    with opened(tmp_path / "e", SAMPLING):
        (tmp_path / "e" / "math500").mkdir()
    with opened(tmp_path / "e", SAMPLING | {"evaluation.seed": 1}, overwrite=True) as attempt:
        assert attempt == 0
        assert not (tmp_path / "e" / "math500").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ConfigError, match="will not empty it"), opened(tmp_path / "mine", SAMPLING, overwrite=True):
        pass
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_two_commands_do_not_write_into_one_folder(tmp_path: Path) -> None:
    other = "import sys; from pathlib import Path; from arpo.evaluate.folder import opened\n"
    other += f"with opened(Path({str(tmp_path)!r}), {{}}): pass"
    with opened(tmp_path, {}):
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
        assert "is in use by process" in done.stderr
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 0


def test_a_damaged_run_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json: not an evaluation's"), opened(tmp_path, SAMPLING):
        pass


async def measured(folder: Path, wrong: list[int], count: int = 8) -> Questions:
    return await runner(Adder(wrong)).measure(questions(count), [Exactly()], ledger(folder))


async def test_two_evaluations_are_paired_by_question(tmp_path: Path) -> None:
    await measured(tmp_path / "before", [0, 1, 2, 3, 4, 5])
    ours = await measured(tmp_path / "after", [0])
    found = against(ours, tmp_path / "before", "em")
    assert found is not None
    assert (found.pairs, found.unpaired, found.theirs, found.ours) == (8, 0, 2 / 8, 7 / 8)
    assert found.difference.value == 5 / 8
    assert found.difference.significant
    fewer = against(ours[:3], tmp_path / "before", "em")
    assert fewer is not None
    assert (fewer.pairs, fewer.theirs, fewer.ours) == (3, 0, 2 / 3)
    assert against(ours, tmp_path / "nowhere", "em") is None


async def test_only_the_same_questions_are_paired(tmp_path: Path) -> None:
    before = await measured(tmp_path / "before", [])
    file = tmp_path / "before" / SAMPLES
    lost, other = before[0][0], before[1][0]
    file.write_text(
        file.read_text()
        .replace(lost.line(), sample("q0", 0, None, key=lost.key, lost=True).line())
        .replace(f'"key": "{other.key}"', '"key": "another question"')
    )
    found = against(before, tmp_path / "before", "em")
    assert found is not None
    assert (found.pairs, found.unpaired) == (6, 2)
    with pytest.raises(DataError, match=r"q0 has no verdict of the metric 'judge' .*--metric judge"):
        against(before, tmp_path / "before", "judge")
    with pytest.raises(DataError, match="no question in common"):
        against([[sample("else")]], tmp_path / "before", "em")


def result(name: str, questions: Questions, **more: object) -> SetResult:
    found = figures(
        questions,
        ("em",),
        passes=(1, 2),
        prices=PriceSettings(sampled_tokens=1e6, currency="EUR"),
        same=lambda task: lambda first, second: first == second,
    )
    return SetResult(name, {"title": name.upper()}, found, **more)  # type: ignore[arg-type]


def test_the_report_holds_what_a_figure_needs(tmp_path: Path) -> None:
    rows = [[sample(f"q{i}", n, float(n == 0), ran={"search": 1}, family="ab"[i % 2]) for n in (0, 1)] for i in (0, 1)]
    sets = [result("first", rows, stands_for="judge", notes=("a | b",)), result("second", [rows[0]])]
    about = {"command": "arpo eval --benchmark first", "model": "pocket", "date": "2026-01-01"}
    judge = {"metric": "em", "by": "judge", "model": "m", "prompt_hash": "0123"}
    results = Results(about, {"em": judge}, sets)
    results.save(tmp_path)
    text = (tmp_path / "results.md").read_text()
    for line in (
        "| command | `arpo eval --benchmark first` |",
        "| metric em | by judge, model m, prompt_hash 0123 |",
        "| set | questions | metric | pass@1 | 95 % interval | pass@2 | maj@2 | other metrics | no verdict |",
        "| first | 2 | em (in place of judge) | 0.500 | 0.500 to 0.500 | 1.000 | 1.000 |  | 0 |",
        "- first: a | b.",
        "| first | a | 1 | 0.500 | 0.500 to 0.500 |",
        "| first | search | 4 | 0 | 0 |",
        "| first | 40 | 400 | 20 | 0 | 1.00 | 0% | 0% | 0 | 40.0000 |",
    ):
        assert line in text.splitlines(), line
    assert "Against" not in text
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["sets"]["first"]["pass@k"]["2"]["accuracy"] == 1.0
    assert kept["sets"]["first"]["in_place_of"] == "judge"
    assert kept["sets"]["first"]["cost"]["money"]["currency"] == "EUR"
    assert kept["metrics"]["em"]["prompt_hash"] == "0123"


async def test_differences_and_sets_without_a_verdict_are_in_the_report(tmp_path: Path) -> None:
    await measured(tmp_path, [0, 1, 2, 3])
    ours = await measured(tmp_path / "ours", [])
    nobody = [[sample("q", 0, verdicts={"em": Verdict(None, by="judge", reason="away")})]]
    sets = [result("first", ours, against=against(ours, tmp_path, "em")), result("second", nobody)]
    text = Results({"model": "m"}, {}, sets, against="before").markdown()
    assert "## Against before" in text
    assert "| first | em | 8 | 0.500 | 1.000 | +0.500 | +0.125 to +0.875 | yes |" in text
    assert "| second | 1 | em | - | - | - |  | 1 |" in text
