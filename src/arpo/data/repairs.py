r"""What can be repaired in a row without guessing, and a record of every change.

Repaired: control characters where LaTeX commands were meant (`\x08oxed`), control characters that belong to no text, a
gold answer that is itself in a box or a sentence around one, blank or null entries among several gold answers. Only
prompts, answers and turns are touched, and verl's copies of them under `extra_info`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from arpo.data.boxes import boxes, unbalanced
from arpo.data.columns import ANSWERS, PROMPTS
from arpo.data.escapes import mended, without_stray

_TEXTS = (*PROMPTS, "conversations", "system", "instruction", "input", "output", "history")
_COPIES = ("question", "answer", "raw_problem", "problem")


@dataclass(frozen=True, slots=True)
class Change:
    """One repair. `field`: the path of the text, `messages[0].content`."""

    field: str
    what: str
    before: Any
    after: Any


def repaired(columns: Mapping[str, Any]) -> tuple[dict[str, Any], list[Change]]:
    """The row with its repairs; an untouched row is equal to what was given."""
    changes: list[Change] = []
    row = {name: _column(name, value, changes) for name, value in columns.items()}
    return row, changes


def _column(name: str, value: Any, changes: list[Change]) -> Any:
    if name in _TEXTS:
        return _each(value, name, changes, _text)
    if name in ANSWERS:
        return _answers(value, name, changes)
    if name == "reward_model" and isinstance(value, dict):
        return value | {
            key: _gold(one, f"{name}.{key}", changes) for key, one in value.items() if key == "ground_truth"
        }
    if name == "extra_info" and isinstance(value, dict):
        copies = {key: value[key] for key in _COPIES if key in value}
        return value | {key: _each(one, f"{name}.{key}", changes, _text) for key, one in copies.items()}
    return value


def _gold(value: Any, path: str, changes: list[Change]) -> Any:
    if isinstance(value, dict) and "target" in value:
        return value | {"target": _answers(value["target"], f"{path}.target", changes)}
    return _answers(value, path, changes)


def _answers(value: Any, path: str, changes: list[Change]) -> Any:
    """Gold answers repaired one by one; of several, those that say nothing go."""
    value = _each(value, path, changes, _answer)
    if not isinstance(value, list):
        return value
    kept = [one for one in value if one is not None and str(one).strip()]
    if len(kept) == len(value) or not kept:
        return value
    changes.append(Change(path, "a blank answer beside others taken out", value, kept))
    return kept


Repair = Callable[[str], Iterable[tuple[str, str]]]
"""From a text to its repairs, one after another: what was done, and the text after it."""


def _each(value: Any, path: str, changes: list[Change], repair: Repair) -> Any:
    """`value` with every text in it repaired, however deep."""
    if isinstance(value, str):
        for what, after in repair(value):
            changes.append(Change(path, what, value, after))
            value = after
        return value
    if isinstance(value, list):
        return [_each(one, f"{path}[{place}]", changes, repair) for place, one in enumerate(value)]
    if isinstance(value, dict):
        return {key: _each(one, f"{path}.{key}", changes, repair) for key, one in value.items()}
    return value


def _text(text: str) -> Iterable[tuple[str, str]]:
    text, count = mended(text)
    if count:
        yield "a control character where a LaTeX command was meant: the command put back", text
    text, count = without_stray(text)
    if count:
        yield "control characters taken out", text


def _answer(text: str) -> Iterable[tuple[str, str]]:
    for what, after in _text(text):
        yield what, after
        text = after
    filled = [box.content for box in boxes(text) if box.content is not None and box.content.strip()]
    if filled and unbalanced(text) is None and filled[-1] is not None:
        yield "taken out of its box", filled[-1].strip()
