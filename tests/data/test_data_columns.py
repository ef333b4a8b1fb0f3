"""What columns mean: ground truth in every shape, kinds from abilities, nulls, content in parts."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.data.columns import UnusableError, answers_of, kind_of, prompt_of
from arpo.data.tasks import read_tasks
from arpo.errors import DataError
from arpo.task import Message


@pytest.mark.parametrize(
    ("columns", "answers"),
    [
        ({"reward_model": {"ground_truth": "Oslo"}}, ("Oslo",)),
        ({"reward_model": {"ground_truth": 4}}, ("4",)),
        ({"reward_model": {"ground_truth": 0.5}}, ("0.5",)),
        ({"reward_model": {"ground_truth": ["a", 2]}}, ("a", "2")),
        ({"reward_model": {"ground_truth": {"target": ["a", "b"]}}}, ("a", "b")),
        ({"reward_model": {"ground_truth": {"target": "a"}}}, ("a",)),
        ({"golden_answers": ["a"], "reward_model": {"ground_truth": {"target": None}}}, ("a",)),
        ({"answer": "worked out: 4", "reward_model": {"ground_truth": "4"}}, ("4",)),
        ({"answer": "a", "reward_model": None}, ("a",)),
        ({"answers": ["a", None], "answer": None}, ("a",)),
    ],
)
def test_ground_truth(columns: dict, answers: tuple[str, ...]) -> None:
    assert answers_of(columns) == answers


def test_an_object_that_is_no_target_is_named() -> None:
    with pytest.raises(UnusableError, match="without 'target', with 'value'"):
        answers_of({"reward_model": {"ground_truth": {"value": 4}}})


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"ability": "math"}, "math"),
        ({"ability": "MATH", "kind": "text"}, "text"),
        ({"ability": "qa"}, "auto"),
        ({"ability": None, "kind": None}, "auto"),
        ({}, "auto"),
    ],
)
def test_kinds(columns: dict, kind: str) -> None:
    assert kind_of(columns) == kind


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "2 + 2"}, {"type": "text", "text": "?"}]
    assert prompt_of({"messages": [{"role": "user", "content": parts}]}) == (Message("user", "2 + 2?"),)
    with pytest.raises(UnusableError, match="role and content"):
        prompt_of({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]})


def test_search_r1_rows_with_nulls(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"train_{n}",
            "question": "Capital of Norway?",
            "golden_answers": ["Oslo", "Kristiania"],
            "data_source": "nq",
            "prompt": [{"role": "user", "content": "Capital of Norway?", "name": None}],
            "ability": "fact-reasoning",
            "reward_model": {"ground_truth": {"target": ["Oslo", "Kristiania"]}, "style": "rule"},
            "extra_info": {"index": n, "split": "train"},
            "metadata": None,
        }
        for n in range(2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    first, second = read_tasks(tmp_path / "t.parquet")
    assert (first.id, first.answers, first.kind) == ("train_0", ("Oslo", "Kristiania"), "auto")
    assert second.provenance["data_source"] == "nq"
    assert second.provenance["split"] == "train"


def test_an_error_names_the_check(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": " "}))
    with pytest.raises(DataError, match=r"row 1: the answer is empty; `arpo data check .*t\.jsonl` lists"):
        read_tasks(path)
