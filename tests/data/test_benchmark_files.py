"""Sets found in folders and read: published layouts, subsets, and errors that name the file and the row."""

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.data.benchmarks import files, registry
from arpo.data.benchmarks.subset import edition, fingerprint
from arpo.errors import ConfigError, DataError

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "eval"
ROWS = [{"question": f"Who is number {n}?", "answer": [f"Ann {n}"]} for n in range(1, 5)]


def lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def get(name: str):
    return registry.get(name)


def test_names():
    assert registry.names() == (
        *("aime24", "aime25", "math500", "gsm8k", "math", "hotpotqa", "2wiki", "musique", "bamboogle"),
        *("webwalker", "gaia", "hle", "xbench", "simpleqa"),
    )
    assert get("SimpleQA").name == "simpleqa"
    assert get("2wikimultihopqa").name == "2wiki"
    assert len({folder for one in registry.ALL for folder in one.folders}) == sum(
        len(one.folders) for one in registry.ALL
    )


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"no benchmark is named 'hotpot_q'; did you mean hotpotqa\?"):
        get("hotpot_q")
    with pytest.raises(ConfigError, match="known: aime24, aime25"):
        get("zzz")


def test_locate_in_published_layouts(tmp_path):
    lines(tmp_path / "SimpleQA" / "test.jsonl", ROWS)
    lines(tmp_path / "GAIA" / "dev.json", ROWS)
    lines(tmp_path / "math500.jsonl", ROWS)
    lines(tmp_path / "hle" / "top.json", ROWS)
    (tmp_path / "hle" / "test.jsonl").touch()  # a release holds an empty one beside it
    (tmp_path / "hle" / ".DS_Store").write_bytes(b"x")
    lines(tmp_path / "gsm8k" / "main" / "train.jsonl", ROWS)
    lines(tmp_path / "gsm8k" / "main" / "test.jsonl", ROWS)
    (tmp_path / "bamboogle").mkdir()
    (tmp_path / "notes").mkdir()
    assert files.locate(tmp_path) == {
        "math500": tmp_path / "math500.jsonl",
        "gsm8k": tmp_path / "gsm8k" / "main" / "test.jsonl",
        "gaia": tmp_path / "GAIA" / "dev.json",
        "hle": tmp_path / "hle" / "top.json",
        "simpleqa": tmp_path / "SimpleQA" / "test.jsonl",
    }
    assert files.locate(tmp_path / "gsm8k") == {"gsm8k": tmp_path / "gsm8k" / "main" / "test.jsonl"}
    assert list(files.locate(tmp_path)) == ["math500", "gsm8k", "gaia", "hle", "simpleqa"]


def test_a_folder_of_sets_may_be_called_as_a_set_is(tmp_path):
    root = tmp_path / "math"
    lines(root / "gsm8k" / "test.jsonl", ROWS)
    lines(root / "math" / "aime24" / "test.jsonl", ROWS)
    assert files.locate(root) == {"gsm8k": root / "gsm8k" / "test.jsonl"}
    lines(root / "math" / "test.jsonl", ROWS)
    assert files.locate(root)["math"] == root / "math" / "test.jsonl"


def test_shards_are_one_set(tmp_path):
    for number, rows in enumerate((ROWS[:2], ROWS[2:])):
        path = tmp_path / "bamboogle" / "data" / f"test-0000{number}-of-00002.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
    found = files.locate(tmp_path)["bamboogle"]
    tasks = files.read(get("bamboogle"), found)
    assert [task.answers for task in tasks] == [("Ann 1",), ("Ann 2",), ("Ann 3",), ("Ann 4",)]
    assert [task.id for task in tasks] == [f"bamboogle:{n}" for n in (1, 2, 3, 4)]
    assert files.read(get("bamboogle"), tmp_path / "bamboogle") == tasks


def test_the_sets_own_split_comes_first(tmp_path):
    for split in ("train", "test", "dev"):
        lines(tmp_path / "2wiki" / f"{split}.jsonl", ROWS)
        lines(tmp_path / "gsm8k" / "main" / f"{split}.jsonl", ROWS)
        lines(tmp_path / "gsm8k" / "socratic" / f"{split}.jsonl", ROWS)
    found = files.locate(tmp_path)
    assert found["2wiki"] == tmp_path / "2wiki" / "dev.jsonl"
    assert found["gsm8k"] == tmp_path / "gsm8k" / "main" / "test.jsonl"


def test_what_the_hub_leaves(tmp_path):
    for split in ("validation", "test"):
        for name in ("metadata", "metadata.level1", "metadata.level2"):
            lines(tmp_path / "GAIA" / "2023" / split / f"{name}.jsonl", ROWS)
    lines(tmp_path / "hotpot_qa" / "hotpot_dev_distractor_v1.jsonl", ROWS)
    lines(tmp_path / "hotpot_qa" / "hotpot_train_v1.1.jsonl", ROWS)
    lines(tmp_path / "hotpot_qa" / "dataset_infos.json", [{}])
    assert files.locate(tmp_path) == {
        "hotpotqa": tmp_path / "hotpot_qa" / "hotpot_dev_distractor_v1.jsonl",
        "gaia": tmp_path / "GAIA" / "2023" / "validation" / "metadata.jsonl",
    }


def test_training_rows_are_not_measured(tmp_path):
    lines(tmp_path / "gsm8k" / "train.jsonl", ROWS)
    with pytest.raises(DataError, match=r"train.jsonl: only rows for training; GSM8K is measured on its split test"):
        files.locate(tmp_path)
    lines(tmp_path / "a" / "aime24" / "data" / "train.jsonl", ROWS)  # the one split of its hub copy
    assert list(files.locate(tmp_path / "a")) == ["aime24"]


def test_what_cannot_be_told_apart_is_refused(tmp_path):
    lines(tmp_path / "gsm8k" / "new" / "test.jsonl", ROWS)
    lines(tmp_path / "gsm8k" / "old" / "test.jsonl", ROWS)
    with pytest.raises(DataError, match=r"several files of the split test: new/test.jsonl, old/test.jsonl; keep one"):
        files.locate(tmp_path)
    lines(tmp_path / "x" / "hle" / "one.json", ROWS)
    lines(tmp_path / "x" / "hle" / "two.json", ROWS)
    with pytest.raises(DataError, match=r"which file holds Humanity's Last Exam. one.json, two.json; keep one"):
        files.locate(tmp_path / "x")
    with pytest.raises(DataError, match="no such folder of benchmark files"):
        files.locate(tmp_path / "y")


def test_csv_as_published(tmp_path):
    path = tmp_path / "simple_qa_test_set.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as out:
        writer = csv.DictWriter(out, ["metadata", "problem", "answer"])
        writer.writeheader()
        writer.writerow({"metadata": "{'topic': 'Art'}", "problem": 'Who, "quoted",\nsaid so?', "answer": "Ann, Anne"})
    (task,) = files.read(get("simpleqa"), path)
    assert (task.question, task.answers) == ('Who, "quoted",\nsaid so?', ("Ann, Anne",))
    assert task.provenance["family"] == "Art"
    path.write_text("problem,answer\nWho?,Ann\nWho else, then?,Ann\n")
    with pytest.raises(DataError, match=r"csv, row 2: not as many values as the header names"):
        files.read(get("simpleqa"), path)
    path.write_bytes(b"problem,answer\nWho?,\xff\n")
    with pytest.raises(DataError, match=r"simple_qa_test_set.csv: not a whole CSV file in UTF-8"):
        files.read(get("simpleqa"), path)


def test_limit_reads_no_further(tmp_path):
    path = lines(tmp_path / "test.jsonl", [*ROWS[:2], {"question": "no answer"}])
    assert len(files.read(get("bamboogle"), path, limit=2)) == 2
    with pytest.raises(DataError, match=r"test.jsonl, row 3: no answer"):
        files.read(get("bamboogle"), path)


def test_rows_outside_the_subset_are_counted(tmp_path, caplog):
    rows = [row | {"file_name": "a.pdf" if n < 3 else ""} for n, row in enumerate(ROWS)]
    with caplog.at_level(logging.WARNING):
        (task,) = files.read(get("gaia"), lines(tmp_path / "gaia.jsonl", rows))
    assert task.answers == ("Ann 4",)
    assert "gaia: 3 rows left out (has an attached file)" in caplog.text
    with pytest.raises(DataError, match="no question of GAIA"):
        files.read(get("gaia"), lines(tmp_path / "gaia.jsonl", rows[:3]))


def test_ids_that_are_no_ids_are_refused(tmp_path):
    path = lines(tmp_path / "test.jsonl", [row | {"id": "x"} for row in ROWS])
    with pytest.raises(DataError, match="bamboogle: rows 1 and 2 have the same id 'bamboogle:x'"):
        files.read(get("bamboogle"), path)


def test_a_subset_by_ids_or_by_rows_of_another_layout(tmp_path):
    path = lines(tmp_path / "test.jsonl", [row | {"task_id": f"t{n}"} for n, row in enumerate(ROWS)])
    ids = tmp_path / "ids.txt"
    ids.write_text("t3\n\nt1\n")
    gaia = get("gaia")
    assert [task.id for task in files.read(gaia, path, ids=ids)] == ["gaia:t1", "gaia:t3"]
    assert [task.id for task in files.read(gaia, path, ids=ids, limit=1)] == ["gaia:t1"]
    rows = [
        {"id": n, "Question": row["question"].replace(" is ", "  is\t"), "answer": "?"} for n, row in enumerate(ROWS)
    ]
    with pytest.raises(DataError, match=r"rows.json, row 1: the answer is withheld"):
        files.read(gaia, path, ids=lines(tmp_path / "rows.json", rows))
    renumbered = [row | {"answer": "Ann"} for row in rows[2:]]
    chosen = files.read(gaia, path, ids=lines(tmp_path / "rows.jsonl", renumbered))
    assert [task.id for task in chosen] == ["gaia:t2", "gaia:t3"]
    ids.write_text("t3\nt9\n")
    with pytest.raises(DataError, match=r"ids.txt: 1 of the 2 rows that it names are not in .*the first is 't9'"):
        files.read(gaia, path, ids=ids)
    ids.write_text("\n")
    with pytest.raises(DataError, match=r"ids.txt: names no row of GAIA"):
        files.read(gaia, path, ids=ids)
    with pytest.raises(DataError, match=r"no file of ids, one a line"):
        files.read(gaia, path, ids=tmp_path / "none.txt")


def test_a_fingerprint_is_of_the_questions_alone(tmp_path):
    gaia, hle = get("gaia"), get("hle")
    some = files.read(gaia, lines(tmp_path / "a.jsonl", ROWS))
    same = files.read(gaia, lines(tmp_path / "b.jsonl", [row | {"answer": "x"} for row in reversed(ROWS)]))
    assert fingerprint(gaia, some) == fingerprint(gaia, same) == fingerprint(hle, files.read(hle, tmp_path / "a.jsonl"))
    assert fingerprint(gaia, some[:3]) != fingerprint(gaia, some)
    assert edition(gaia, some) == ""


def test_the_hub_is_asked_for_the_sets_split(monkeypatch, caplog):
    import datasets

    asked = []
    picture = {"bytes": b"\x89PNG", "path": None}
    rows = [
        {
            "id": "a",
            "question": "Which?",
            "answer": "B",
            "answer_type": "multipleChoice",
            "image": "",
            "image_preview": None,
        },
        {
            "id": "b",
            "question": "What?",
            "answer": "7",
            "answer_type": "exactMatch",
            "image": "data:,x",
            "image_preview": picture,
        },
    ]

    def load(path, config, *, split):
        asked.append((path, config, split))
        return datasets.Dataset.from_list(rows).cast_column("image_preview", datasets.Image())

    monkeypatch.setattr(datasets, "load_dataset", load)
    (task,) = files.read(get("hle"))
    assert (task.id, task.kind, task.answers) == ("hle:a", "choice", ("B",))
    assert "hle: 1 rows left out (has an image)" in caplog.text
    with pytest.raises(DataError, match=r"hf:openai/gsm8k/main@test, row 1: the solution does not end"):
        files.read(replace(get("gsm8k"), item=lambda row: get("gsm8k").item({"question": "?", "answer": "x\ny"})))
    assert asked == [("cais/hle", None, "test"), ("openai/gsm8k", "main", "test")]


def test_the_hub_out_of_reach_says_what_to_do(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    absent = replace(get("gsm8k"), source="nobody/there-is-no-such-set")
    with pytest.raises(DataError, match=r"hf:nobody/there-is-no-such-set/main@test.*ROOT/gsm8k/test.jsonl.*--files"):
        files.read(absent)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/data/eval is not there")
def test_all_published_files():
    found = files.locate(PUBLISHED)
    sizes = {
        "aime24": 30,
        "aime25": 30,
        "math500": 500,
        "hotpotqa": 200,
        "2wiki": 200,
        "webwalker": 200,
        "simpleqa": 500,
    }
    tasks = {name: files.read(get(name), path) for name, path in found.items()}
    assert {name: len(some) for name, some in tasks.items()} == sizes
    assert all(edition(get(name), some) for name, some in tasks.items())
    assert [task.id for task in tasks["aime24"][:2]] == ["aime24:60", "aime24:61"]
    assert tasks["aime25"][0].answers == ("70",)
    assert tasks["2wiki"][0].answers[:2] == ("the five boroughs", "City of New York")
    assert tasks["webwalker"][1].answers == ("肖亮",)
