"""Tasks from files: JSONL, JSON and Parquet, in the shapes that people already have.

A row needs a prompt and a gold answer. Prompt: `question` (text), `messages` (a list of {role, content}), or `prompt`
(either). Answer: `answer`, `answers`, or verl's `reward_model.ground_truth` (a text, a list, or {"target": ...}).
Optional: `id` (default FILE:ROW), `kind` (how to compare; default auto). Other columns are left alone. A row that
cannot be used stops the reading with its file and number: a task without an answer would train towards nothing.
"""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args

from arpo.errors import DataError
from arpo.task import AnswerKind, Message, Task

log = logging.getLogger(__name__)

Row = tuple[int, Mapping[str, Any]]
"""A row's number (line number in JSONL, else position; both from 1) and its columns."""

_ROLES = ("system", "user", "assistant")
_KINDS = get_args(AnswerKind)
_BROKEN_BOXED = "\x08oxed"
"""A backspace where `\\boxed` was meant (an unescaped \\b): found in every row of a widely used published set."""


class _UnusableError(ValueError):
    """Why a row cannot be used; becomes a DataError that names the row."""


def read_tasks(path: str | Path) -> list[Task]:
    """All tasks of one file, in order. Raises DataError with the file and the row number."""
    path = Path(path)
    tasks = [_numbered_task(path, number, row) for number, row in _rows(path)]
    if not tasks:
        raise DataError(f"{path}: the file holds no task")
    _refuse_duplicates(path, tasks)
    return tasks


def _rows(path: Path) -> Iterator[Row]:
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise DataError(f"{path}: a task file ends in .jsonl, .json or .parquet, not {path.suffix or 'nothing'!r}")
    if not path.is_file():
        raise DataError(f"{path}: no such task file")
    return readers[path.suffix](path)


def _jsonl_rows(path: Path) -> Iterator[Row]:
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _json_object(path, number, line, last=number == len(lines))


def _json_object(path: Path, number: int, line: bytes, last: bool) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, row {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        hint = "; the file seems to be cut off here, fetch or write it again" if last else ""
        raise DataError(f"{path}, row {number}: not JSON ({error.msg}){hint}") from error
    return _as_object(path, number, row)


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not JSON, or cut off ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: a .json task file is a list of rows, not {type(rows).__name__}")
    return ((number, _as_object(path, number, row)) for number, row in enumerate(rows, 1))


def _as_object(path: Path, number: int, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{path}, row {number}: a row is an object with named columns, not {type(row).__name__}")
    return row


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({error}); fetch or write it again") from error
    return enumerate(rows, 1)


def _numbered_task(path: Path, number: int, row: Mapping[str, Any]) -> Task:
    try:
        return _task(path, number, row)
    except _UnusableError as error:
        raise DataError(f"{path}, row {number}: {error}") from error


def _task(path: Path, number: int, row: Mapping[str, Any]) -> Task:
    kind = row.get("kind") or "auto"
    if kind not in _KINDS:
        raise _UnusableError(f"kind = {kind!r} is not one of {', '.join(_KINDS)}")
    name = row.get("id")
    provenance = {"file": str(path), "row": str(number)}
    provenance |= {key: row[key] for key in ("data_source", "family", "split") if isinstance(row.get(key), str)}
    return Task(
        id=f"{path.name}:{number}" if name is None else str(name),
        messages=_messages(row, f"{path}, row {number}"),
        answers=_answers(row),
        kind=cast(AnswerKind, kind),
        provenance=provenance,
    )


def _messages(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    given = [key for key in ("messages", "prompt", "question") if row.get(key) is not None]
    if not given:
        raise _UnusableError("no prompt (expected a column question, messages or prompt)")
    value = row[given[0]]
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise _UnusableError(f"{given[0]} must be a text or a list of messages, not {type(value).__name__}")
    messages = tuple(_message(item, where) for item in value)
    if not any(message.role == "user" for message in messages):
        raise _UnusableError(f"{given[0]} holds no user message")
    return messages


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict) or not isinstance(item.get("content"), str):
        raise _UnusableError(f"a message is an object with role and content, not {item!r:.80}")
    if item.get("role") not in _ROLES:
        raise _UnusableError(f"a message's role is one of {', '.join(_ROLES)}, not {item.get('role')!r}")
    content: str = item["content"]
    if item["role"] != "assistant" and not content.strip():
        raise _UnusableError(f"the {item['role']} message is empty")
    if _BROKEN_BOXED in content:
        log.warning("%s: a backspace stands where \\boxed was meant; mended", where)
        content = content.replace(_BROKEN_BOXED, "\\boxed")
    return Message(item["role"], content)


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    values = tuple(_answer(value) for value in _listed(_gold(row)))
    if not values:
        raise _UnusableError("no answer (expected a column answer, answers or reward_model.ground_truth)")
    return values


def _gold(row: Mapping[str, Any]) -> Any:
    for key in ("answers", "answer"):
        if row.get(key) is not None:
            return row[key]
    model = row.get("reward_model")
    gold = model.get("ground_truth") if isinstance(model, dict) else None
    return gold.get("target") if isinstance(gold, dict) else gold


def _listed(value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _answer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _UnusableError(f"an answer is a text or a number, not {value!r:.80}")
    if isinstance(value, float) and not math.isfinite(value):
        raise _UnusableError(f"the answer is {value}")
    if not str(value).strip():
        raise _UnusableError("the answer is empty")
    return str(value)


def _refuse_duplicates(path: Path, tasks: list[Task]) -> None:
    """Ids name seeds, groups and log rows: two tasks with one id would draw the same samples."""
    first: dict[str, Task] = {}
    for task in tasks:
        other = first.setdefault(task.id, task)
        if other is not task:
            raise DataError(
                f"{path}, row {task.provenance['row']}: the id {task.id!r} is also that of row "
                f"{other.provenance['row']}; ids must differ (leave the column out to have them numbered)"
            )
