"""What a tool gave back, made safe: a ToolResult for certain, text that fools nobody, no more of it than allowed."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arpo.tools.base import ToolResult, ToolStatus

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Unicode's categories Cc and Cs but for newline and tab, and the bidirectional overrides and isolates."""
_TOLD = 500
"""Characters of a failure that are kept for logs and `data`."""
DATA = 262_144
"""Characters of `data`, about."""
_EACH = 8
"""Characters that a value counts for besides its text."""
_DEEP = 32
"""How deep data that are cut may be nested."""


def checked(returned: Any) -> ToolResult:
    """What a tool returned, as a ToolResult; a plain str is a success with that text.

    Raises TypeError or ValueError saying what is wrong with anything else.
    """
    if isinstance(returned, str):
        return ToolResult(ToolStatus.OK, str.__str__(returned))
    if not isinstance(returned, ToolResult):
        raise TypeError(f"it returned an object of type {type(returned).__name__}, not a ToolResult or a str")
    wanted: tuple[tuple[str, Any, type], ...] = (
        ("text", returned.text, str),
        ("data", returned.data, Mapping),
        ("cached", returned.cached, bool),
        ("empty", returned.empty, bool),
    )
    for name, value, kind in wanted:
        if not isinstance(value, kind):
            raise TypeError(f"its result's `{name}` is of type {type(value).__name__}, not {kind.__name__}")
    status, score = ToolStatus(returned.status), _score(returned.score)
    text = str.__str__(returned.text)
    same = status is returned.status and score is returned.score and text is returned.text
    return returned if same else replace(returned, status=status, score=score, text=text)


def _score(score: Any) -> float | None:
    if score is None:
        return None
    if not math.isfinite(score):
        raise ValueError(f"its result's `score` is {score}, not a finite number")
    return float(score)


def bounded(result: ToolResult) -> ToolResult:
    """`result` with no more `data` than a group of trajectories can hold for long.

    Data of plain values up to about DATA characters stay as they are. Of more, what comes first stays, texts cut.
    """
    if _size(result.data, DATA) <= DATA:
        return result
    return replace(result, data={**_Cut(DATA).mapping(result.data), "cut": True})


def _size(value: Any, limit: int) -> int:
    """About how many characters `value` holds, counted until they are more than `limit`."""
    total, stack = 0, [value]
    while stack and total <= limit:
        one = stack.pop()
        total += _EACH + (len(one) if isinstance(one, str | bytes | bytearray) else 0)
        if isinstance(one, Mapping):
            stack += [part for pair in itertools.islice(one.items(), limit) for part in pair]
        elif isinstance(one, list | tuple | set | frozenset):
            stack += itertools.islice(one, limit)
        else:
            total += int(getattr(one, "nbytes", 0))
    return total


class _Cut:
    """Copies plain values until `room` characters are used up, and not deeper than _DEEP."""

    def __init__(self, room: int) -> None:
        self.room = room

    def mapping(self, value: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, one in value.items():
            if self.room <= 0:
                break
            copied[self._text(str(key))] = self._value(one, depth + 1)
        return copied

    def _text(self, text: str) -> str:
        short = cap(str.__str__(text), max(self.room, _EACH))
        self.room -= len(short) + _EACH
        return short

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        self.room -= _EACH
        if isinstance(value, Mapping) and depth < _DEEP:
            return self.mapping(value, depth)
        if isinstance(value, list | tuple) and depth < _DEEP:
            return [self._value(one, depth + 1) for one in itertools.takewhile(lambda _: self.room > 0, value)]
        return value if isinstance(value, bool | int | float | None) else f"<{type(value).__name__}>"


def told(error: Exception) -> str:
    """An exception in one line of bounded length, even if it cannot be printed."""
    try:
        return cap(f"{type(error).__name__}: {error}", _TOLD)
    except Exception:  # noqa: BLE001 - a user's exception may fail at being printed, too
        return type(error).__name__


def words(error: Exception) -> str:
    """What an exception says, even if it cannot be printed."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - as above
        return type(error).__name__


def cap(text: str, limit: int) -> str:
    """`text` in at most `limit` characters: head and tail are kept, a marker says how much was cut out between."""
    if len(text) <= limit:
        return text
    room = limit - len(_marker(len(text)))
    head = max(room, 0) * 2 // 3
    tail = max(room, 0) - head
    return text[:head] + _marker(len(text) - head - tail) + text[len(text) - tail :]


def _marker(cut: int) -> str:
    return f" [... {cut} characters cut ...] "


def clean(text: str) -> str:
    """`text` without what could fool a tokenizer, a terminal or a reader.

    Lone surrogates and control and bidirectional-override characters become U+FFFD; newline and tab stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))
