"""Tasks from several files of one configuration."""

import json
from pathlib import Path

import pytest

from arpo.config.load import load
from arpo.config.wire import build_tasks
from arpo.errors import DataError


def written(folder: Path, *rows: dict[str, str]) -> str:
    folder.mkdir()
    file = folder / "test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def tasks_of(*files: str):
    return build_tasks(load(overrides=["data.type=files", f"data.train={json.dumps(files)}"]).config)


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    row = {"question": "1+1?", "answer": "2"}
    files = [written(tmp_path / name, row, row) for name in ("one", "two", "three")]
    ids = [task.id for task in tasks_of(*files)]
    assert ids[:3] == ["test.jsonl:1", "test.jsonl:2", f"{files[1]}:1"]
    assert len(set(ids)) == 6


def test_ids_that_rows_bring_along_must_differ_between_files(tmp_path: Path) -> None:
    row = {"id": "mine", "question": "1+1?", "answer": "2"}
    with pytest.raises(DataError, match=r"row 1: the id 'mine' is also in .*one.*test\.jsonl"):
        tasks_of(*(written(tmp_path / name, row) for name in ("one", "two")))
