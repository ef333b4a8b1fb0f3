"""From one format to another: `arpo data convert`.

Tasks become tasks (jsonl, verl), demonstrations become demonstrations (sharegpt, alpaca, openai). Between the two
something is lost or has to be found, and it is said:

- a task becomes a demonstration whose answer is the first gold answer in a box; its other answers, its id and its kind
  are lost;
- a demonstration becomes a task that asks what the user asks first, with what the last turn has in its last box (or
  between answer tags) as the gold answer; the turns between are lost, and where there is no such answer, there is no
  task.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from arpo.data.boxes import boxes
from arpo.data.columns import UnusableError
from arpo.data.conversations import Conversation, is_conversation, read_conversations
from arpo.data.rows import scan_rows
from arpo.data.sinks import dumped, refuse_existing, write_lines, write_list, write_parquet
from arpo.data.tasks import read_tasks
from arpo.data.turns import Turn
from arpo.data.writers import (
    CHAT_FORMATS,
    TASK_FORMATS,
    Made,
    chat_rows,
    compact,
    own_id,
    several,
    task_rows,
    verl_schema,
)
from arpo.errors import ConfigError, DataError
from arpo.task import Message, Task

FORMATS = (*TASK_FORMATS, *CHAT_FORMATS)
_SUFFIXES = {"verl": (".parquet",), "jsonl": (".jsonl", ".json")}
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def convert(source: str | Path, out: Path, form: str, *, overwrite: bool = False) -> tuple[int, Counter[str]]:
    """Write `source` as `form`; how many rows, and what they lost, counted.

    Raises ConfigError for a format or a name of OUT that does not fit, DataError naming the row that cannot be held.
    """
    _refuse(out, form, overwrite)
    losses: Counter[str] = Counter()
    try:
        made = _made(source, form, losses)
    except UnusableError as error:
        raise DataError(str(error)) from error
    losses.update(loss for _, lost in made for loss in lost)
    rows = [row for row, _ in made]
    if out.suffix == ".parquet":
        return write_parquet(out, rows, verl_schema(several=several(rows))), losses
    lines = [dumped(compact(row)) for row in rows]
    return (write_list if out.suffix == ".json" else write_lines)(out, lines), losses


def _refuse(out: Path, form: str, overwrite: bool) -> None:
    if form not in FORMATS:
        raise ConfigError(f"--to {form}: the formats are {', '.join(FORMATS)}")
    allowed = _SUFFIXES.get(form, (".json", ".jsonl"))
    if out.suffix not in allowed:
        raise ConfigError(f"{out}: {form} is written to a file that ends in {' or '.join(allowed)}")
    refuse_existing(out, overwrite=overwrite)


def _made(source: str | Path, form: str, losses: Counter[str]) -> Sequence[Made]:
    """The rows of the format, from whatever the source holds."""
    first = next((row for row in scan_rows(source) if not row.fault), None)
    if first is None:
        raise DataError(f"{source}: holds not a single row that can be read")
    if is_conversation(first.columns):
        conversations = read_conversations(source)
        if form in CHAT_FORMATS:
            return chat_rows(conversations, form)
        return task_rows([task_from(one, losses) for one in conversations], form)
    tasks = read_tasks(source)
    if form in TASK_FORMATS:
        return task_rows(tasks, form)
    return chat_rows([conversation_from(task, losses) for task in tasks], form)


def conversation_from(task: Task, losses: Counter[str]) -> Conversation:
    """A demonstration that answers at once, in a box."""
    losses["the id of a task"] += own_id(task) is not None
    losses["the kind of a task's answer"] += task.kind != "auto"
    losses["other gold answers of a task"] += len(task.answers) > 1
    for name in sorted(set(task.provenance) - {"file", "row"}):
        losses[f"provenance: {name}"] += 1
    turns = [Turn(message.role, message.content, message.role == "assistant") for message in task.messages]
    answer = Turn("assistant", f"\\boxed{{{task.answers[0]}}}", True)
    return Conversation((*turns, answer), None, f"{task.provenance.get('file')}, row {task.provenance.get('row')}")


def task_from(conversation: Conversation, losses: Counter[str]) -> Task:
    """What a demonstration asks first, with the answer of its last turn. UnusableError: there is no such answer."""
    place = next(number for number, turn in enumerate(conversation.turns) if turn.role in ("assistant", "tool"))
    asked, rest = conversation.turns[:place], conversation.turns[place:]
    answer = _final(rest[-1].content)
    if answer is None:
        raise UnusableError(
            f"{conversation.origin}: the last turn has neither a filled \\boxed{{}} nor <answer> tags, so there is no "
            "gold answer for a task"
        )
    losses["the turns of a demonstration between question and answer"] += len(rest) > 1
    losses["what a demonstration's last turn says beside the answer"] += rest[-1].content.strip() != answer
    losses["the tools of a demonstration"] += bool(conversation.tools)
    messages = tuple(Message(cast(Any, turn.role), turn.content) for turn in asked)
    file, _, row = conversation.origin.rpartition(", row ")
    return Task(f"{Path(file).name}:{row}", messages, (answer,), "auto", {"file": file, "row": row})


def _final(text: str) -> str | None:
    filled = [box.content.strip() for box in boxes(text) if box.content is not None and box.content.strip()]
    if filled:
        return filled[-1]
    tagged = [one.strip() for one in _TAGGED.findall(text) if one.strip()]
    return tagged[-1] if tagged else None
