"""Tasks and demonstrations into the formats that other tools read, and what each of them cannot hold.

Tasks: `jsonl` (ours, whole) and `verl` (Parquet with prompt, ability, reward_model.ground_truth; what verl has no
column for stands beside as `id`, `kind` and `family`). Demonstrations: `sharegpt`, `alpaca`, `openai`.

Every function gives the row and the names of what was lost on the way; who converts counts them and says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from arpo.data.chat_rows import alpaca_row, openai_row, sharegpt_row
from arpo.data.conversations import Conversation
from arpo.task import Task

Made = tuple[dict[str, Any], list[str]]
"""A row, and what it does not hold of what it was made from."""

TASK_FORMATS = ("jsonl", "verl")
CHAT_FORMATS = {"sharegpt": sharegpt_row, "alpaca": alpaca_row, "openai": openai_row}
_PLACE = ("file", "row")
"""Where a task was read from: no part of the task."""


def jsonl_row(task: Task, number: int) -> Made:
    """A task as our own JSON line. `number` is its place, from 1."""
    plain = len(task.messages) == 1 and task.messages[0].role == "user"
    prompt = {"question": task.question} if plain else {"messages": _messages(task)}
    answer = {"answer": task.answers[0]} if len(task.answers) == 1 else {"answers": list(task.answers)}
    kept = {name: value for name, value in task.provenance.items() if name not in _PLACE}
    return {"id": own_id(task), **prompt, **answer, "kind": task.kind, **kept}, []


def verl_row(task: Task, number: int) -> Made:
    """A task as a row of verl's `RLHFDataset`: the reward function gets `ground_truth`, a text or a list of texts."""
    kept = {name: value for name, value in task.provenance.items() if name not in (*_PLACE, "data_source", "ability")}
    row = {
        "data_source": task.provenance.get("data_source", "arpo"),
        "prompt": _messages(task),
        "ability": task.provenance.get("ability") or ("math" if task.kind == "math" else "qa"),
        "reward_model": {"style": "rule", "ground_truth": _gold(task)},
        "extra_info": {"index": number - 1, "split": kept.pop("split", None), "question": task.question},
        "id": own_id(task),
        "kind": task.kind,
        "family": kept.pop("family", None),
    }
    return row, [f"provenance: {name}" for name in kept]


def _gold(task: Task) -> str | list[str]:
    return task.answers[0] if len(task.answers) == 1 else list(task.answers)


def own_id(task: Task) -> str | None:
    """The task's id; None if it is the place where it was read, which it would not be in a copy."""
    numbered = task.id.endswith(f":{task.provenance.get('row')}")
    return None if numbered and "file" in task.provenance else task.id


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in task.messages]


def task_rows(tasks: Sequence[Task], form: str) -> list[Made]:
    """Tasks as rows of a format of TASK_FORMATS."""
    make = jsonl_row if form == "jsonl" else verl_row
    made = [make(task, number) for number, task in enumerate(tasks, 1)]
    if form == "verl" and several([row for row, _ in made]):
        for row, _ in made:  # a column has one type: where one row needs a list, all have one
            gold = row["reward_model"]["ground_truth"]
            row["reward_model"]["ground_truth"] = [gold] if isinstance(gold, str) else gold
    return made


def several(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a row of a verl file has a list of gold answers."""
    return any(isinstance(row["reward_model"]["ground_truth"], list) for row in rows)


def chat_rows(conversations: Sequence[Conversation], form: str) -> list[Made]:
    """Demonstrations as rows of a format of CHAT_FORMATS. Raises UnusableError for one that does not fit at all."""
    return [CHAT_FORMATS[form](conversation) for conversation in conversations]


def verl_schema(*, several: bool) -> Any:
    """The columns of a verl file, so that a null in every row does not lose its type. `several`: gold answers a row."""
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", pa.list_(text) if several else text)])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", text), ("question", text)])),
            ("id", text),
            ("kind", text),
            ("family", text),
        ]
    )


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without columns that are null, for formats with a row a line."""
    return {name: value for name, value in row.items() if value is not None}
