"""What a tool gave back, made safe: a ToolResult for certain, text that fools nobody, no more of it than allowed."""

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arpo.tools.base import ToolResult, ToolStatus

_BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_TOLD = 500
"""Characters of a failure that are kept for logs and `data`."""


def checked(returned: Any) -> ToolResult:
    """What a tool returned, as a ToolResult; a plain str is a success with that text.

    Raises TypeError or ValueError saying what is wrong with anything else.
    """
    if isinstance(returned, str):
        return ToolResult(ToolStatus.OK, returned)
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
    same = status is returned.status and score is returned.score
    return returned if same else replace(returned, status=status, score=score)


def _score(score: Any) -> float | None:
    if score is None:
        return None
    if not math.isfinite(score):
        raise ValueError(f"its result's `score` is {score}, not a finite number")
    return float(score)


def told(error: Exception) -> str:
    """An exception in one line of bounded length, even if it cannot be printed."""
    try:
        return cap(f"{type(error).__name__}: {error}", _TOLD)
    except Exception:  # noqa: BLE001 - a user's exception may fail at being printed, too
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
    return "".join("\ufffd" if _unsafe(char) else char for char in text.replace("\r\n", "\n"))


def _unsafe(char: str) -> bool:
    if char in "\n\t":
        return False
    return unicodedata.category(char) in ("Cc", "Cs") or char in _BIDIRECTIONAL
