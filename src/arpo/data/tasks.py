"""Tasks from data that people already have: JSONL, JSON and Parquet files, folders, Hugging Face data sets.

Where the rows may lie is said in `arpo.data.rows`, what their columns mean in `arpo.data.columns`. Optional columns:
`id` (default FILE:ROW), `kind` or `ability` (how to compare); other columns are left alone. A row that cannot be used
stops the reading with its file and number: a task without an answer would train towards nothing. One accident is mended
on the way, and said: a control character that stands where a LaTeX command began (see `arpo.data.escapes`).
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from arpo.data.columns import UnusableError, answers_of, kind_of, prompt_of
from arpo.data.escapes import mended
from arpo.data.rows import HUB, Row, read_rows
from arpo.errors import DataError
from arpo.task import Task

log = logging.getLogger(__name__)

_KEPT = ("data_source", "family", "split", "ability")


def read_tasks(source: str | Path) -> list[Task]:
    """All tasks of one source, in order. Raises DataError with the file and the row number."""
    tasks: list[Task] = []
    counts: dict[str, int] = {}
    for row in read_rows(source):
        task, repairs = _mended(_read(row))
        tasks.append(task)
        counts[row.file] = counts.get(row.file, 0) + bool(repairs)
    if not tasks:
        raise DataError(f"{source}: holds no task, not a single row")
    _say(counts)
    _refuse_duplicates(tasks)
    return tasks


def task_of(row: Row) -> Task:
    """The task of a row, its texts as they are written. Raises UnusableError."""
    name = row.columns.get("id")
    return Task(
        id=f"{row.name}:{row.number}" if name is None else str(name),
        messages=prompt_of(row.columns),
        answers=answers_of(row.columns),
        kind=kind_of(row.columns),
        provenance=_provenance(row),
    )


def _read(row: Row) -> Task:
    try:
        return task_of(row)
    except UnusableError as error:
        raise DataError(f"{row.where}: {error}{_hint(row.file)}") from error


def _hint(file: str) -> str:
    if file.startswith(HUB):
        return f"; `arpo data check {file}` lists all such rows"
    return f"; `arpo data check {file}` lists all such rows, `arpo data fix` writes a copy without them"


def _provenance(row: Row) -> Mapping[str, str]:
    extra = row.columns.get("extra_info")
    columns: Mapping[str, Any] = (extra if isinstance(extra, dict) else {}) | dict(row.columns)
    kept = {key: columns[key] for key in _KEPT if isinstance(columns.get(key), str)}
    return {"file": row.file, "row": str(row.number)} | kept


def _mended(task: Task) -> tuple[Task, int]:
    """The task with broken LaTeX commands put right, and how many there were."""
    messages = [(message, *mended(message.content)) for message in task.messages]
    answers = [mended(answer) for answer in task.answers]
    count = sum(number for _, _, number in messages) + sum(number for _, number in answers)
    if not count:
        return task, 0
    texts = tuple(replace(message, content=text) for message, text, _ in messages)
    return replace(task, messages=texts, answers=tuple(text for text, _ in answers)), count


def _say(counts: Mapping[str, int]) -> None:
    """Once a file: a message per row would be ten thousand of them."""
    for file, rows in counts.items():
        if rows:
            log.warning(
                "%s: in %d row%s a control character stands where a LaTeX command was meant, as in \\x08oxed; mended. "
                "`arpo data fix` writes a copy that is right",
                file,
                rows,
                "" if rows == 1 else "s",
            )


def _refuse_duplicates(tasks: Iterable[Task]) -> None:
    """Ids name seeds, groups and log rows: two tasks with one id would draw the same samples."""
    first: dict[str, Task] = {}
    for task in tasks:
        other = first.setdefault(task.id, task)
        if other is not task:
            file, row = task.provenance["file"], task.provenance["row"]
            raise DataError(
                f"{file}, row {row}: the id {task.id!r} is also that of row "
                f"{other.provenance['row']}; ids must differ (leave the column out to have them numbered)"
            )
