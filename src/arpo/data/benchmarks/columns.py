"""Questions and answers out of rows, whatever their columns are called.

Each set is in circulation under several layouts: the hub's, FlashRAG's (`golden_answers`), the search agents' own
(`Question`, `answer`), verl's. The names differ and never contradict one another, so one list of names reads them
all; what needs more than a name is in the sets' own files. The first name that holds something counts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arpo.data.benchmarks.base import Row, RowError

QUESTIONS = ("question", "Question", "problem", "Problem", "prompt")
ANSWERS = ("golden_answers", "answers", "answer", "Answer", "Final answer", "final_answer", "gold")
IDS = ("task_id", "unique_id", "_id", "id", "ID", "idx")


def question(row: Row, names: Sequence[str] = QUESTIONS) -> str:
    """The row's question, without blanks around it. Raises RowError."""
    value = first(row, names)
    if isinstance(value, list | tuple):
        value = next(
            (m["content"] for m in reversed(value) if isinstance(m, Mapping) and m.get("role") == "user"), None
        )
    if value is None:
        raise RowError(f"no question (expected a column {', '.join(names)}; there are {', '.join(row) or 'none'})")
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"the question is {value!r:.60}, not a text")
    return value.strip()


def answers(row: Row, names: Sequence[str] = ANSWERS) -> tuple[str, ...]:
    """The gold answers, any of which is right; never empty. Raises RowError."""
    value = first(row, names)
    if value is None:
        value = first(row.get("reward_model") or {}, ("ground_truth",))
    if isinstance(value, Mapping):
        value = value.get("target")
    if value is None:
        raise RowError(f"no answer (expected a column {', '.join(names)}; there are {', '.join(row) or 'none'})")
    return unique(text(item) for item in listed(value))


def listed(value: Any) -> Sequence[Any]:
    """A list as it is, one value as a list of it, None as an empty one."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """Each answer once, in order. Raises RowError if there is none."""
    kept = tuple(dict.fromkeys(value for value in values if value))
    if not kept:
        raise RowError("the answer is empty")
    return kept


def text(value: Any) -> str:
    """An answer as text: 70 and 70.0 are "70". Raises RowError."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(f"an answer is a text or a number, not {value!r:.60}")
    return str(value).strip()


def first(row: Row, names: Sequence[str]) -> Any:
    """What the first of these columns holds that holds something; None where none does."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def label(row: Row, *names: str) -> str:
    """A column of the per-type table as text, "" where the layout lacks it."""
    value = first(row, names)
    return "" if value is None else str(value).strip()


def identity(row: Row) -> str:
    """The set's own id of this row, "" where the layout has none."""
    return label(row, *IDS)


def nested(row: Row, name: str) -> Mapping[str, Any]:
    """A column that holds an object, or an object written as JSON; {} where it holds neither."""
    value = row.get(name)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
