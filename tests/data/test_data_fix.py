"""`arpo data fix`: what is repaired, what is set aside, and that nothing is lost on the way."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.data.check import check
from arpo.data.fix import around, beside, fix
from arpo.data.tasks import read_tasks
from arpo.errors import ConfigError, DataError

GOOD = {"question": "Capital of Norway?", "answer": "Oslo", "note": "\x08 stays: no part of the task"}
BACKSPACE = {"question": "In \x08oxed{}: 2 + 2?", "answer": "4"}


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_repairs_are_made_and_logged(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "t.jsonl",
        GOOD,
        BACKSPACE,
        {"prompt": [{"role": "user", "content": "nul\x00 q"}], "reward_model": {"ground_truth": "It is \\boxed{C}."}},
        {"question": "several", "answers": ["\x0crac{1}{2}", " ", None]},
    )
    fixed = fix(source, tmp_path / "out.jsonl")
    assert (fixed.rows, fixed.written, fixed.repaired, fixed.rejected) == (4, 4, 3, 0)
    rows = lines(tmp_path / "out.jsonl")
    assert rows[0] == GOOD
    assert rows[1] == {"question": "In \\boxed{}: 2 + 2?", "answer": "4"}
    assert rows[2]["prompt"][0]["content"] == "nul q"
    assert rows[2]["reward_model"]["ground_truth"] == "C"
    assert rows[3]["answers"] == ["\\frac{1}{2}"]
    log = lines(beside(tmp_path / "out.jsonl", "log"))
    assert [(entry["row"], entry["field"]) for entry in log] == [
        (2, "question"),
        (3, "prompt[0].content"),
        (3, "reward_model.ground_truth"),
        (4, "answers[0]"),
        (4, "answers"),
    ]
    assert (log[0]["before"], log[0]["after"]) == ("In \x08oxed{}: 2 + 2?", "In \\boxed{}: 2 + 2?")
    assert not beside(tmp_path / "out.jsonl", "rejected").exists()
    (report,) = check([tmp_path / "out.jsonl"])
    assert {finding.kind for finding in report.findings} == {"missing_column"}


def test_untouched_lines_stay_as_they_are(tmp_path: Path) -> None:
    odd = '{"answer":4,   "question":"caf\\u00e9"}'
    source = jsonl(tmp_path / "t.jsonl", odd, BACKSPACE)
    fix(source, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text().splitlines()[0] == odd


def test_rows_that_cannot_be_repaired_are_kept_with_their_reasons(tmp_path: Path) -> None:
    cut = {"question": "sum?", "answer": "1}^N"}
    blank = {"question": "prove it \x08oxed{}", "answer": " "}
    source = jsonl(tmp_path / "t.jsonl", GOOD, cut, '{"question', blank, BACKSPACE)
    fixed = fix(source, tmp_path / "out.jsonl")
    assert (fixed.written, fixed.rejected) == (2, 3)
    assert fixed.reasons == {"unbalanced_answer": 1, "unreadable_row": 1, "blank_answer": 1}
    rejected = lines(beside(tmp_path / "out.jsonl", "rejected"))
    assert [entry["row"] for entry in rejected] == [2, 3, 4]
    assert rejected[0]["columns"] == cut
    assert rejected[1]["raw"] == '{"question'
    assert rejected[2]["columns"] == blank  # as it was, the backspace included
    assert "the gold answer is empty" in rejected[2]["reasons"][0]
    assert len(read_tasks(tmp_path / "out.jsonl")) == 2


def test_duplicates_and_overlaps_go_on_demand(tmp_path: Path) -> None:
    rows = [GOOD, {"question": "capital of Norway", "answer": "Bergen"}, BACKSPACE]
    source = jsonl(tmp_path / "t.jsonl", *rows)
    test = jsonl(tmp_path / "test.jsonl", {"problem": "In \\boxed{}: $2+2$?", "answer": 4})
    assert fix(source, tmp_path / "all.jsonl").written == 3
    fixed = fix(source, tmp_path / "out.jsonl", drop_duplicates=True, without=[test])
    assert (fixed.written, fixed.reasons) == (1, {"duplicate": 1, "overlap": 1})
    rejected = lines(beside(tmp_path / "out.jsonl", "rejected"))
    assert rejected[0]["reasons"] == ["the question is also that of row 1"]
    assert rejected[1]["reasons"] == [f"the question is also in {test}, row 1"]
    (report,) = check([tmp_path / "out.jsonl"], against=[test])
    assert report.findings == []


def test_ids_that_are_taken_are_given_up(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "t.jsonl", {"id": 7, **GOOD}, {"id": 7, **BACKSPACE})
    fix(source, tmp_path / "out.jsonl")
    assert [task.id for task in read_tasks(tmp_path / "out.jsonl")] == ["7", "out.jsonl:2"]
    assert lines(beside(tmp_path / "out.jsonl", "log"))[-1]["field"] == "id"


def test_parquet_keeps_its_schema_and_its_other_columns(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int32()), ("question", pa.string())])),
            ("embedding", pa.list_(pa.float32())),
            ("when", pa.timestamp("us")),
            ("metadata", pa.null()),
        ],
        metadata={"made": "by hand"},
    )
    rows = [
        {
            "prompt": [{"role": "system", "content": "\x08oxed{}"}, {"role": "user", "content": f"question {n}"}],
            "reward_model": {"ground_truth": "" if n == 2 else str(n), "style": "rule"},
            "extra_info": {"index": n, "question": f"question {n} \x0crac{{1}}{{2}}"},
            "embedding": [0.1, n],
            "when": None,
            "metadata": None,
        }
        for n in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "t.parquet")
    fixed = fix(tmp_path / "t.parquet", tmp_path / "out.parquet")
    assert (fixed.written, fixed.rejected) == (3, 1)
    before, after = pq.read_table(tmp_path / "t.parquet"), pq.read_table(tmp_path / "out.parquet")
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.column("embedding").to_pylist() == before.take([0, 1, 3]).column("embedding").to_pylist()
    assert after.column("prompt").to_pylist()[2][0]["content"] == "\\boxed{}"
    assert after.column("extra_info").to_pylist()[2]["question"] == "question 3 \\frac{1}{2}"


def test_a_json_list_stays_one(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([GOOD, BACKSPACE]))
    fix(tmp_path / "t.json", tmp_path / "out.json")
    first, second = json.loads((tmp_path / "out.json").read_text())
    assert first == GOOD
    assert second["question"] == "In \\boxed{}: 2 + 2?"


def test_demonstrations(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Who\x00?"}, {"from": "gpt", "value": "\x08oxed{I}"}]
    source = jsonl(tmp_path / "t.jsonl", {"conversations": turns}, {"conversations": turns[:1]})
    fixed = fix(source, tmp_path / "out.jsonl")
    assert (fixed.written, fixed.reasons) == (1, {"bad_conversation": 1})
    (row,) = lines(tmp_path / "out.jsonl")
    assert [turn["value"] for turn in row["conversations"]] == ["Who?", "\\boxed{I}"]


def test_a_search_cache(tmp_path: Path) -> None:
    entries = ['"a": "Page 1: x"', '"b <search>": "Page 1: y"', '"a": "Page 1: z"']
    (tmp_path / "cache.json").write_text("{\n" + ",\n".join(entries) + "\n}")
    fixed = fix(tmp_path / "cache.json", tmp_path / "out.json")
    assert (fixed.written, fixed.rejected) == (1, 2)
    assert json.loads((tmp_path / "out.json").read_text()) == {"a": "Page 1: z"}
    rejected = lines(beside(tmp_path / "out.json", "rejected"))
    assert [(entry["query"], entry["text"]) for entry in rejected] == [("a", "Page 1: x"), ("b <search>", "Page 1: y")]


def test_what_would_lose_a_file_is_refused(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "t.jsonl", GOOD)
    (tmp_path / "link.jsonl").symlink_to(source)
    for out, message in (
        ("t.jsonl", "is the file itself"),
        ("link.jsonl", "is the file itself"),
        ("out.parquet", "name it out.jsonl"),
    ):
        with pytest.raises(ConfigError, match=message):
            fix(source, tmp_path / out, overwrite=True)
    fix(source, tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"out\.jsonl: is there already"):
        fix(source, tmp_path / "out.jsonl")
    assert fix(source, tmp_path / "out.jsonl", overwrite=True).written == 1
    with pytest.raises(ConfigError, match="one file at a time"):
        fix(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="no such file"):
        fix(tmp_path / "none.jsonl", tmp_path / "new.jsonl")


def test_a_file_that_breaks_off_leaves_no_copy(tmp_path: Path) -> None:
    table = pa.table({"question": [f"q{n}" for n in range(5000)], "answer": ["b"] * 5000})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    damaged = bytearray((tmp_path / "t.parquet").read_bytes())
    with pq.ParquetFile(tmp_path / "t.parquet") as file:
        place = file.metadata.row_group(3).column(0).data_page_offset
    damaged[place : place + 40] = b"\xff" * 40
    (tmp_path / "t.parquet").write_bytes(damaged)
    with pytest.raises(DataError, match="not a whole Parquet file"):
        fix(tmp_path / "t.parquet", tmp_path / "out.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.parquet"]


def test_long_texts_are_logged_around_the_change() -> None:
    before, after = around("x" * 500 + "\x08oxed" + "y" * 500, "x" * 500 + "\\boxed" + "y" * 500)
    assert before.strip("…").strip("xy") == "\x08oxed"
    assert after.strip("…").strip("xy") == "\\boxed"
    assert len(before) < 130
    assert around("short", "sort") == ("short", "sort")
