"""What the columns of a row mean: the prompt, the gold answers, how to compare them.

Prompt: `messages` (a list of {role, content}), `prompt` (a list or a text), `question` or `problem` (a text). Gold
answers: verl's `reward_model.ground_truth` (a text, a number, a list, or {"target": ...}), else `answers`, `answer` or
`golden_answers`. `kind` says how to compare; where it is not there, `ability` "math" does, and everything else is
seen from the gold answer. A column that is null counts as one that is not there: Parquet gives every row every field.

Each question about a row has a function of its own, which raises UnusableError, so that reading may stop at the first
trouble and a check can go on to the next.
"""

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

from arpo.task import AnswerKind, Message

PROMPTS = ("messages", "prompt", "question", "problem")
ANSWERS = ("answers", "answer", "golden_answers")
KINDS = get_args(AnswerKind)
_ROLES = ("system", "user", "assistant")
_MATHS = ("math", "maths", "mathematics")


class UnusableError(ValueError):
    """Why a row cannot be used; whoever reads rows adds the file and the number."""


class BlankError(UnusableError):
    """The gold answer is there, and empty."""


class MissingError(UnusableError):
    """A column that a task needs is not there, or null."""


def prompt_of(columns: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages, as they are written. Raises UnusableError."""
    key = next((key for key in PROMPTS if columns.get(key) is not None), None)
    if key is None:
        raise MissingError("no prompt (expected a column question, messages or prompt)")
    value = columns[key]
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise UnusableError(f"{key} must be a text or a list of messages, not {type(value).__name__}")
    messages = tuple(_message(item) for item in value)
    if not any(message.role == "user" for message in messages):
        raise UnusableError(f"{key} holds no user message")
    return messages


def _message(item: Any) -> Message:
    text = text_of(item.get("content")) if isinstance(item, dict) else None
    if text is None:
        raise UnusableError(f"a message is an object with role and content, not {item!r:.80}")
    if item.get("role") not in _ROLES:
        raise UnusableError(f"a message's role is one of {', '.join(_ROLES)}, not {item.get('role')!r}")
    if item["role"] != "assistant" and not text.strip():
        raise UnusableError(f"the {item['role']} message is empty")
    return Message(item["role"], text)


def text_of(content: Any) -> str | None:
    """The text of a message's content: a text, or a list of parts {"type": "text", "text": ...}; None: neither."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    return "".join(cast(list[str], texts)) if all(isinstance(text, str) for text in texts) else None


def answers_of(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """The gold answers as texts; at least one. Raises UnusableError."""
    gold = gold_of(columns)
    if isinstance(gold, dict):
        raise UnusableError(f"the answer is an object without 'target', with {', '.join(map(repr, gold)) or 'nothing'}")
    listed = gold if isinstance(gold, list | tuple) else [gold]
    values = tuple(_answer(value) for value in listed if value is not None)
    if not values:
        raise MissingError("no answer (expected a column answer, answers or reward_model.ground_truth)")
    return values


def gold_of(columns: Mapping[str, Any]) -> Any:
    """What stands where the gold answer does, None if nothing does."""
    model = columns.get("reward_model")
    gold = model.get("ground_truth") if isinstance(model, dict) else None
    if isinstance(gold, dict) and "target" in gold:
        gold = gold["target"]
    return gold if gold is not None else next((columns[key] for key in ANSWERS if columns.get(key) is not None), None)


def _answer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnusableError(f"an answer is a text or a number, not {value!r:.80}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnusableError(f"the answer is {value}")
    if not str(value).strip():
        raise BlankError("the answer is empty")
    return str(value)


def kind_of(columns: Mapping[str, Any]) -> AnswerKind:
    """How to compare with the gold answers. Raises UnusableError for a kind that there is not."""
    kind = columns.get("kind")
    if kind is None or kind == "":
        return "math" if str(columns.get("ability")).lower() in _MATHS else "auto"
    if kind not in KINDS:
        raise UnusableError(f"kind = {kind!r} is not one of {', '.join(KINDS)}")
    return cast(AnswerKind, kind)
