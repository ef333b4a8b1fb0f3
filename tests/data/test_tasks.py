"""Task files: every accepted shape, and an error with file and row for everything else."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.data.tasks import read_tasks
from arpo.errors import DataError
from arpo.task import Message


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(row + "\n" if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


GOOD = {"question": "2 + 2?", "answer": 4}


def test_jsonl_question_and_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "", {"id": "b", "question": "Capital?", "answers": ["Oslo", "Kristiania"]})
    first, second = read_tasks(path)
    assert (first.id, first.question, first.answers, first.kind) == ("t.jsonl:1", "2 + 2?", ("4",), "auto")
    assert (second.id, second.answers) == ("b", ("Oslo", "Kristiania"))
    assert second.provenance["row"] == "3"  # blank lines count: the number is the editor's line


def test_messages_keep_roles_and_order(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    (task,) = read_tasks(write(tmp_path / "t.jsonl", {"messages": messages, "answer": "4", "kind": "number"}))
    assert task.messages == (Message("system", "Be brief."), Message("user", "2 + 2?"))
    assert task.kind == "number"


@pytest.mark.parametrize("gold", ["Oslo", ["Oslo"], {"target": ["Oslo"]}])
def test_verl_parquet(tmp_path: Path, gold: object) -> None:
    row = {
        "data_source": "hard_search",
        "prompt": [{"role": "user", "content": "Capital of Norway?"}],
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": 0},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    (task,) = read_tasks(tmp_path / "t.parquet")
    assert (task.question, task.answers) == ("Capital of Norway?", ("Oslo",))
    assert task.provenance["data_source"] == "hard_search"


def test_json_list_with_bom_and_crlf(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([GOOD]))
    assert read_tasks(tmp_path / "t.json")[0].answers == ("4",)
    (tmp_path / "t.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert read_tasks(tmp_path / "t.jsonl")[0].answers == ("4",)


def test_a_backspace_in_boxed_is_mended_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "t.jsonl", {"question": "Answer in \x08oxed{}.", "answer": "1"})
    assert read_tasks(path)[0].question == "Answer in \\boxed{}."
    (record,) = caplog.records
    assert f"{path}: in 1 row a control character" in record.getMessage()


def test_mended_rows_are_counted_once_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"question": f"{n} in \x08oxed{{}}", "answer": "\x0crac{1}{2}"} for n in range(7)]
    tasks = read_tasks(write(tmp_path / "t.jsonl", GOOD, *rows))
    assert tasks[7].answers == ("\\frac{1}{2}",)
    (record,) = caplog.records
    assert "in 7 rows" in record.getMessage()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q"}, "no answer"),
        ({"question": "q", "answer": None}, "no answer"),
        ({"question": "q", "answers": []}, "no answer"),
        ({"question": "q", "answer": "  "}, "the answer is empty"),
        ({"question": "q", "answer": True}, "a text or a number"),
        ('{"question": "q", "answer": NaN}', "the answer is nan"),
        ({"answer": "a"}, "no prompt"),
        ({"question": " ", "answer": "a"}, "user message is empty"),
        ({"messages": [{"role": "system", "content": "s"}], "answer": "a"}, "no user message"),
        ({"messages": [{"role": "human", "content": "s"}], "answer": "a"}, "role is one of"),
        ({"messages": [{"role": "user"}], "answer": "a"}, "role and content"),
        ({"question": 3, "answer": "a"}, "a text or a list of messages"),
        ({"question": "q", "answer": "a", "kind": "maths"}, "kind = 'maths' is not one of"),
        (["q", "a"], "an object with named columns"),
        ('{"question": "q", "answer"', "not JSON"),
        ({"id": "x", "question": "q", "answer": "a"}, "also that of row 1"),
    ],
)
def test_unusable_rows_are_named(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path / "t.jsonl", {"id": "x", **GOOD}, row, {"id": "z", **GOOD})
    with pytest.raises(DataError, match=r"t\.jsonl, row 2: ") as caught:
        read_tasks(path)
    assert message in str(caught.value)


def test_a_truncated_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:12])
    with pytest.raises(DataError, match=r"row 2: not JSON.*cut off"):
        read_tasks(path)


def test_a_truncated_parquet_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"question": ["q"], "answer": ["a"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read_tasks(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.jsonl", None, "no such file"),
        ("t.csv", "question,answer\n", "end in .jsonl, .json or .parquet"),
        ("t.jsonl", "\n", "holds no task"),
        ("t.json", '{"question": "q"}', "a list of rows"),
        ("t.json", "[{", "not JSON, or cut off"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=name) as caught:
        read_tasks(tmp_path / name)
    assert message in str(caught.value)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(json.dumps(GOOD).encode() + b'\n{"question": "caf\xe9", "answer": "a"}\n')
    with pytest.raises(DataError, match="row 2: not UTF-8"):
        read_tasks(tmp_path / "t.jsonl")
