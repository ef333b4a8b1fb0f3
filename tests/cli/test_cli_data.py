"""`arpo data`: exit codes, what is printed, and what programs get."""

import json
import shutil
from pathlib import Path

import pytest

from arpo.cli.app import run

GOOD = {"question": "Capital of Norway?", "answer": "Oslo"}
WARNING = {"question": "capital of Norway", "answer": "Oslo"}
ERROR = {"question": "In \x08oxed{}?", "answer": " "}


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("rows", "code"),
    [((GOOD,), 0), ((GOOD, GOOD | {"question": "q", "note": 1}), 0), ((GOOD, WARNING), 7), ((ERROR,), 1)],
)
def test_the_exit_code_says_how_bad_it_is(tmp_path: Path, rows: tuple[dict, ...], code: int) -> None:
    assert run(["data", "check", write(tmp_path / "t.jsonl", *rows)]) == code


def test_what_a_check_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, *[ERROR | {"question": f"{n}: in \x08oxed{{}}"} for n in range(20)])
    assert run(["data", "check", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}: 21 tasks"
    assert lines[1] == "  error       20  blank_answer: the gold answer is empty"
    assert (
        lines[4] == "  error       20  broken_escape in question: a control character where a LaTeX command was meant"
    )
    assert lines[5] == "                  rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ..."
    assert lines[6] == "                  row 2: 0: in \\x08oxed{}"
    assert lines[-1] == "1 file, 21 rows: 40 errors, 0 warnings, 0 notes"


def test_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = write(tmp_path / "t.jsonl", GOOD, WARNING), write(tmp_path / "test.jsonl", GOOD)
    assert run(["data", "check", train, "--against", test, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 1
    (file,) = told["files"]
    assert (file["file"], file["form"], file["rows"]) == (train, "tasks", 2)
    assert file["findings"][0] == {
        "kind": "test_overlap",
        "severity": "error",
        "meaning": "the question is in a file that this one must not overlap",
        "place": "",
        "against": test,
        "count": 2,
        "rows": [1, 2],
        "excerpts": [
            "row 1 there: Capital of Norway?",
            "row 1 there, in other dress: capital of Norway",
        ],
    }


def test_long_prompts_by_the_tokens_of_a_model(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, GOOD | {"question": "word " * 300}, GOOD | {"question": "lone \ud800"})
    assert run(["data", "check", path, "--tokenizer", str(tiny), "--max-prompt-tokens", "200"]) == 7
    assert "1  long_prompt in prompt" in capsys.readouterr().out
    changed = tmp_path / "strict"
    shutil.copytree(tiny, changed)
    (changed / "chat_template.jinja").write_text("{{ raise_exception('no system message') }}")
    assert run(["data", "check", path, "--tokenizer", str(changed), "--max-prompt-tokens", "200"]) == 1
    assert "the chat template says: no system message" in capsys.readouterr().out
    assert run(["data", "check", path, "--max-prompt-tokens", "200"]) == 2
    assert "--tokenizer NAME --max-prompt-tokens N" in capsys.readouterr().err


def test_no_terminal_is_fooled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "t.jsonl", {"question": "\x1b]0;title\x07 \u202e\x9b31m", "answer": "b", "\x1b[2J": 1}, GOOD
    )
    assert run(["data", "check", path]) == 7
    out = capsys.readouterr().out
    assert "\\x1b]0;title\\x07 \\u202e\\x9b31m" in out
    assert not set("\x1b\x07\u202e\x9b") & set(out)


def test_fix_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, ERROR, WARNING, {"question": "\x08oxed", "answer": "b"})
    out = str(tmp_path / "out.jsonl")
    assert run(["data", "fix", path, out, "--drop-duplicates"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 2 of 4 rows, 1 of them repaired",
        "  repaired        1  a control character where a LaTeX command was meant: the command put back",
        "  set aside       1  blank_answer",
        "  set aside       1  duplicate",
        f"every change: {out}.log.jsonl",
        f"2 rows set aside: {out}.rejected.jsonl",
    ]
    assert run(["data", "check", out]) == 0
    assert run(["data", "fix", path, out]) == 2
    assert "is there already" in capsys.readouterr().err


def test_convert_says_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", GOOD | {"id": "x"}, WARNING)
    out = str(tmp_path / "out.json")
    assert run(["data", "convert", path, out, "--to", "sharegpt"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{out}: 2 rows as sharegpt\n"
    assert told.err == "  lost in 1 row: the id of a task\n"
    assert run(["data", "convert", path, out, "--to", "csv"]) == 2
    assert "the formats are" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "check", str(tmp_path / "none.jsonl")]) == 1
    assert "unreadable_file" in capsys.readouterr().out
    assert run(["data", "check"]) == 2
    assert "name the files" in capsys.readouterr().err
