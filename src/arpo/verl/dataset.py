"""Our tasks as the Parquet files that verl's RLHFDataset reads, and back.

verl wants chat messages, a data source and a ground truth per row, and hands whatever stands in `extra_info` to the
agent loop. There our task travels whole, as JSON, and the worker rolls out the very task that `arpo train` would: the
other columns are for verl's own tables and are read by nobody of ours.

Columns: `prompt` (list of role and content), `data_source`, `ability`, `reward_model` (style, ground_truth: the first
answer), `extra_info` (index: row from 0, split, arpo_task).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.errors import DataError
from arpo.task import Message, Task

SOURCE = "arpo"
"""The data source of every row: verl groups its validation figures by it."""


def write_task(task: Task) -> str:
    """JSON that `read_task` reads back to an equal task."""
    return json.dumps(asdict(task) | {"provenance": dict(task.provenance)}, ensure_ascii=False)


def read_task(text: str) -> Task:
    """Raises DataError for what `write_task` did not write."""
    try:
        values = json.loads(text)
        messages = tuple(Message(**message) for message in values["messages"])
        return Task(**values | {"messages": messages, "answers": tuple(values["answers"])})
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"extra_info.arpo_task is no task of ours ({error}); write the file anew with `arpo launch verl`"
        ) from error


def row(task: Task, index: int, split: str) -> dict[str, Any]:
    """One row of verl's."""
    return {
        "prompt": [asdict(message) for message in task.messages],
        "data_source": SOURCE,
        "ability": task.kind,
        "reward_model": {"style": "rule", "ground_truth": task.answers[0]},
        "extra_info": {"index": index, "split": split, "arpo_task": write_task(task)},
    }


def write_rows(path: Path, tasks: Sequence[Task], split: str) -> None:
    """Write the file, whole or not at all. DataError if there are no tasks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not tasks:
        raise DataError(f"no tasks for {path}: verl cannot read an empty file; check data.* in the config")
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist([row(task, i, split) for i, task in enumerate(tasks)]), half)
    half.replace(path)


def read_rows(path: Path) -> list[Task]:
    """The tasks of a file that `write_rows` wrote. DataError naming the row that is not one."""
    import pyarrow.parquet as pq

    tasks = []
    for number, extra in enumerate(pq.read_table(path, columns=["extra_info"]).column(0).to_pylist()):
        try:
            tasks.append(read_task(extra["arpo_task"]))
        except DataError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    return tasks
