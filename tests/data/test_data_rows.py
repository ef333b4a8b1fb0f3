"""Where rows may lie: shards, patterns, folders of save_to_disk, data sets by path; and what is said of the rest."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.data.hub import Named, parse
from arpo.data.rows import read_rows, scan_rows
from arpo.data.tasks import read_tasks
from arpo.errors import DataError

ROWS = [{"question": f"q{n}", "answer": str(n)} for n in range(5)]


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(source: str | Path) -> list[str]:
    return [row.columns["question"] for row in read_rows(source)]


def test_a_folder_is_its_shards_in_the_order_of_their_names(tmp_path: Path) -> None:
    jsonl(tmp_path / "s" / "b.jsonl", ROWS[2:])
    pq.write_table(pa.Table.from_pylist(ROWS[:2]), tmp_path / "s" / "a.parquet")
    jsonl(tmp_path / "s" / ".hidden" / "x.jsonl", ROWS)
    jsonl(tmp_path / "s" / "_log.jsonl", ROWS)
    (tmp_path / "s" / "README.md").write_text("shards")
    assert questions(tmp_path / "s") == ["q0", "q1", "q2", "q3", "q4"]
    tasks = read_tasks(tmp_path / "s")
    assert [task.id for task in tasks] == ["a.parquet:1", "a.parquet:2", "b.jsonl:1", "b.jsonl:2", "b.jsonl:3"]
    assert tasks[2].provenance["file"] == str(tmp_path / "s" / "b.jsonl")


def test_shards_of_one_name_in_two_folders_keep_their_ids_apart(tmp_path: Path) -> None:
    jsonl(tmp_path / "x" / "0.jsonl", ROWS[:1])
    jsonl(tmp_path / "y" / "0.jsonl", ROWS[1:2])
    assert [task.id for task in read_tasks(tmp_path)] == ["x/0.jsonl:1", "y/0.jsonl:1"]


def test_a_pattern(tmp_path: Path) -> None:
    for number in (1, 2):
        jsonl(tmp_path / f"train-{number}.jsonl", ROWS[number : number + 1])
    jsonl(tmp_path / "test-1.jsonl", ROWS)
    assert questions(tmp_path / "train-*.jsonl") == ["q1", "q2"]
    with pytest.raises(DataError, match="no such file"):
        questions(tmp_path / "dev-*.jsonl")


def test_a_large_parquet_file_is_numbered_through(tmp_path: Path) -> None:
    rows = [{"question": str(n), "answer": "a"} for n in range(2500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert [(row.number, row.columns["question"]) for row in read_rows(tmp_path / "t.parquet")] == [
        (n + 1, str(n)) for n in range(2500)
    ]


def test_reading_goes_on_behind_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"question": "q0"}\n{"question\n[1]\n{"question": "caf\xe9"}\n{"question": "q4"}')
    rows = list(scan_rows(path))
    assert [row.fault.split(" (")[0] for row in rows] == [
        "",
        "not JSON",
        "a row is an object with named columns, not list",
        "not UTF-8",
        "",
    ]
    assert rows[1].raw == '{"question'
    assert rows[3].raw == '{"question": "caf\\xe9"}'
    with pytest.raises(DataError, match=r"t\.jsonl, row 2: not JSON"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"answer": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ('{"question": "q"}'.encode("utf-16").decode("latin-1"), "not UTF-8"),
    ],
    ids=["deep", "long number", "utf-16"],
)
def test_hostile_lines_are_faults(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(line.encode("latin-1") + b"\n")
    (row,) = scan_rows(tmp_path / "t.jsonl")
    assert row.fault.startswith(message)


def test_a_json_file_with_a_row_a_line(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.json", ROWS)
    assert [row.number for row in read_rows(path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("t.csv", "end in .jsonl, .json or .parquet, not '.csv'"),
        ("none.jsonl", "no such file"),
        ("empty", "holds no .jsonl, .json or .parquet file"),
    ],
)
def test_what_is_no_source(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "t.csv").write_text("question,answer\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=source) as caught:
        list(scan_rows(tmp_path / source))
    assert message in str(caught.value)


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    DatasetDict({"train": data.select(range(2)), "test": data}).save_to_disk(tmp_path / "both")
    assert questions(tmp_path / "one") == questions(f"hf:{tmp_path}/one") == ["q0", "q1", "q2", "q3", "q4"]
    assert questions(tmp_path / "both" / "train") == questions(f"hf:{tmp_path}/both@train") == ["q0", "q1"]
    with pytest.raises(DataError, match="holds the splits train, test; name one"):
        questions(tmp_path / "both")
    (tmp_path / "one" / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match="not a folder of save_to_disk that is whole"):
        questions(tmp_path / "one")


def test_a_selection_is_read_as_selected(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).select([3, 1]).save_to_disk(tmp_path / "some")
    assert questions(tmp_path / "some") == ["q3", "q1"]


@pytest.fixture
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries as under HF_HUB_OFFLINE=1, which they read once, with a cache of their own."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("_no_network")
def test_data_sets_by_path(tmp_path: Path) -> None:
    jsonl(tmp_path / "set" / "train.jsonl", ROWS[:3])
    jsonl(tmp_path / "set" / "test.jsonl", ROWS[3:])
    source = f"hf:{tmp_path}/set"
    assert questions(f"{source}@train") == ["q0", "q1", "q2"]
    assert read_tasks(f"{source}@test")[1].id == f"{source}@test:2"
    with pytest.raises(DataError, match=r"holds the splits train, test; name one of them, hf:.*@train"):
        questions(source)
    with pytest.raises(DataError, match=r'cannot be loaded: Unknown split "dev"'):
        questions(f"{source}@dev")


@pytest.mark.usefixtures("_no_network")
def test_a_name_without_network_says_what_to_do() -> None:
    with pytest.raises(DataError, match="hf:nobody/nothing@train: cannot be loaded") as caught:
        questions("hf:nobody/nothing@train")
    assert "hf download --repo-type dataset nobody/nothing" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("hf:squad", Named("squad", None, None)),
        ("hf:openai/gsm8k", Named("openai/gsm8k", None, None)),
        ("hf:openai/gsm8k/main@train[:10]", Named("openai/gsm8k", "main", "train[:10]")),
        ("hf:./here/it/is/all@test", Named("./here/it/is/all", None, "test")),
        ("hf:/home/a@b/set", Named("/home/a@b/set", None, None)),
        ("hf:/home/a@b/set@dev", Named("/home/a@b/set", None, "dev")),
    ],
)
def test_names(source: str, named: Named) -> None:
    assert parse(source) == named


@pytest.mark.parametrize("source", ["hf:", "hf:@train", "hf:a//b", "hf:a/b/c/d"])
def test_names_that_are_none(source: str) -> None:
    with pytest.raises(DataError, match="a data set is named"):
        parse(source)
