"""Questions and answers out of rows, whatever their columns are called.

Each set is in circulation under several layouts: the hub's, FlashRAG's (`golden_answers`), the search agents' own
(`Question`, `answer`), verl's. The names differ and never contradict one another, so one list of names reads them
all; what needs more than a name is in the sets' own files. The first name that holds something counts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arpo.data.benchmarks.base import Row
from arpo.data.columns import BlankError, MissingError, answers_of, gold_of, prompt_of

QUESTIONS = ("question", "Question", "problem", "Problem", "prompt")
ANSWERS = ("golden_answers", "answers", "answer", "Answer", "Final answer", "final_answer")
IDS = ("task_id", "unique_id", "_id", "id", "ID", "idx")


def question(row: Row) -> str:
    """The row's question, without blanks around it. Raises UnusableError."""
    value = first(row, QUESTIONS)
    if value is None:
        raise MissingError(f"no question (expected a column {', '.join(QUESTIONS)}; there are {_names(row)})")
    if isinstance(value, str) and not value.strip():
        raise BlankError("the question is empty")
    return [message.content for message in prompt_of({"question": value}) if message.role == "user"][-1].strip()


def answers(row: Row) -> tuple[str, ...]:
    """The gold answers, any of which is right; never empty. Raises UnusableError."""
    value = gold(row)
    if value is None:
        raise MissingError(f"no answer (expected a column {', '.join(ANSWERS)}; there are {_names(row)})")
    return unique(answers_of({"answers": [_whole(one) for one in listed(value)]}))


def gold(row: Row) -> Any:
    """What stands where the gold answer does, None if nothing does."""
    value = first(row, ANSWERS)
    return gold_of(row) if value is None else value


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """Each answer once, in order, without blanks around it; blank ones are none."""
    return tuple(dict.fromkeys(stripped for value in values if (stripped := value.strip())))


def listed(value: Any) -> Sequence[Any]:
    """A list as it is, one value as a list of it, None as an empty one."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def first(row: Row, names: Sequence[str]) -> Any:
    """What the first of these columns holds that holds something; None where none does."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def label(row: Row, *names: str) -> str:
    """A column of the per-type table as text, "" where the layout lacks it."""
    value = first(row, names)
    return "" if value is None else str(_whole(value)).strip()


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


def _whole(value: Any) -> Any:
    """70.0 as 70: a column of whole numbers with a null in it becomes one of floats in pandas."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _names(row: Row) -> str:
    return ", ".join(row) or "none"
