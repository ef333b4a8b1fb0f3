"""The published files, with the defects that are known of them. They are not part of the repository."""

from pathlib import Path

import pytest

from arpo.data.check import check
from arpo.data.findings import FileReport, exit_code
from arpo.data.fix import fix
from arpo.data.tasks import read_tasks

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".." / "shared" / "data"
RL, EVAL = DATA / "arpo_rl", DATA / "eval"
TESTS = ("2wiki", "SimpleQA", "aime24", "aime25", "hotpotqa", "math500", "webwalker")

pytestmark = pytest.mark.skipif(not RL.is_dir(), reason=f"{RL} is not there")


def against(report: FileReport) -> dict[str, int]:
    """Rows that are in a test file, by its name."""
    return {
        Path(group.against).parent.name: len(group.rows) for group in report.groups() if group.kind == "test_overlap"
    }


@pytest.fixture(scope="module")
def reports() -> dict[str, FileReport]:
    names = ("train_10k.parquet", "hard_search_1k.parquet", "valid.parquet", "search_cache.json")
    tests = [EVAL / name / "test.jsonl" for name in TESTS]
    found = check([RL / name for name in names], against=tests)
    return {Path(report.file).stem: report for report in found}


@pytest.mark.slow
def test_a_backspace_in_every_prompt(reports: dict[str, FileReport]) -> None:
    counts = {name: report.count("broken_escape") for name, report in reports.items()}
    assert counts == {"train_10k": 10_000, "hard_search_1k": 1071, "valid": 180, "search_cache": 0}
    system, question = [g for g in reports["train_10k"].groups() if g.kind == "broken_escape"]
    assert (system.place, len(system.rows)) == ("system message", 10_000)
    assert (question.place, len(question.rows)) == ("question", 21)
    assert "\\x08oxed{answer here}" in system.excerpts[0]
    assert exit_code(reports.values()) == 1


@pytest.mark.slow
def test_answers_that_cannot_be_right(reports: dict[str, FileReport]) -> None:
    rows = {group.kind: group.rows for group in reports["train_10k"].groups() if group.severity == "error"}
    assert rows["blank_answer"] == (5275,)
    assert rows["unbalanced_answer"] == rows["inconsistent_hybrid"] == (387, 532, 890, 3302, 9204)
    assert rows["torn_answer"] == (1578, 7948, 9368)
    warned = {group.kind: group.rows for group in reports["train_10k"].groups() if group.severity == "warning"}
    assert warned["boxed_answer"] == (2748, 6104, 6567, 7973)
    assert 4577 in warned["leaked_answer"]


@pytest.mark.slow
def test_questions_that_come_twice(reports: dict[str, FileReport]) -> None:
    report = reports["train_10k"]
    assert (report.count("duplicate_question"), report.count("near_duplicate")) == (37, 9)
    contradicting = {f.row for f in report.findings if f.kind == "contradicting_answers"}
    assert {5507, 5926, 8927, 9201} <= contradicting
    assert 4379 not in contradicting  # 3+\sqrt{2} and \sqrt{2} + 3
    assert reports["hard_search_1k"].count("overlap") == 442


@pytest.mark.slow
def test_test_questions_in_training_and_validation(reports: dict[str, FileReport]) -> None:
    assert against(reports["train_10k"]) == {"SimpleQA": 14, "hotpotqa": 5}
    assert against(reports["hard_search_1k"]) == {"SimpleQA": 24, "hotpotqa": 15}
    assert against(reports["valid"]) == {"aime24": 30, "math500": 30}


@pytest.mark.slow
def test_the_search_cache(reports: dict[str, FileReport]) -> None:
    report = reports["search_cache"]
    assert (report.rows, report.count("corrupt_entry"), report.count("empty_result")) == (1000, 2, 2)


def test_the_test_files_but_for_three_questions() -> None:
    found = check([EVAL / name / "test.jsonl" for name in TESTS])
    broken = {(Path(report.file).parent.name, f.kind, f.row) for report in found for f in report.findings}
    assert broken == {("aime25", "broken_escape", row) for row in (19, 20, 28)}


def test_a_repaired_copy_is_clean(tmp_path: Path) -> None:
    tests = [EVAL / name / "test.jsonl" for name in TESTS]
    fixed = fix(RL / "valid.parquet", tmp_path / "valid.parquet", without=tests)
    assert (fixed.rows, fixed.written, fixed.repaired, fixed.reasons) == (180, 120, 120, {"overlap": 60})
    (report,) = check([tmp_path / "valid.parquet"], against=tests)
    assert report.findings == []
    assert len(read_tasks(tmp_path / "valid.parquet")) == 120


def test_mended_while_reading(caplog: pytest.LogCaptureFixture) -> None:
    tasks = read_tasks(RL / "valid.parquet")
    assert "\\boxed{answer here}" in tasks[0].messages[0].content
    assert {task.kind for task in tasks if task.provenance["ability"] == "math"} == {"math"}
    (record,) = caplog.records
    assert "in 180 rows" in record.getMessage()
