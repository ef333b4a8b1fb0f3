r"""Reading a judge's reply: what has exactly the form that was asked for counts, and nothing else.

A search for a word anywhere in the reply is how verdicts go wrong: "CORRECT" is part of "INCORRECT", an A is part of
"NOT_ATTEMPTED", and a reply that quotes the answer under judgement repeats whatever that answer claims. So a reply is
one JSON object or ends in one line of a fixed form; anything else is no verdict.
"""

import json
import re
from typing import Any

_THOUGHT = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)
_OPEN_THOUGHT = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_FENCED = re.compile(r"\A```(?:json)?[ \t]*\n(.*)\n```\Z", re.DOTALL)
_BACKSLASH = re.compile(r'(?<!\\)((?:\\\\)*)\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ORNAMENT = "*_`#> \t\"'“”‘’"


def spoken(reply: str) -> str:
    """The reply without what a reasoning model thought before it; "" if it never stopped thinking."""
    said = _THOUGHT.sub("", reply, count=1).strip()
    return "" if _OPEN_THOUGHT.match(said) else said


def json_object(reply: str) -> dict[str, Any] | None:
    """The JSON object that the whole reply is, fenced or not; None for anything else, repeated keys included."""
    fenced = _FENCED.match(reply)
    try:
        # models write LaTeX into reasons, and forget that JSON wants its backslashes doubled
        text = _BACKSLASH.sub(r"\1\\\\", fenced[1] if fenced else reply)
        value = json.loads(text, object_pairs_hook=_once, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key occurs twice")
    return values


def last_line(reply: str) -> str:
    """The last line that is not blank, without Markdown's ornaments and a final full stop."""
    return next((plain for line in reversed(reply.splitlines()) if (plain := _plain(line))), "")


def _plain(text: str) -> str:
    return text.strip(_ORNAMENT).rstrip(".。").strip(_ORNAMENT)


def labelled(reply: str, label: str) -> str | None:
    """What stands after `label:` on the line that begins so, without ornaments; None without one, or if two differ."""
    pattern = re.compile(rf"[*_`#>\s-]*{re.escape(label)}[*_`\s]*[:：](.*)", re.IGNORECASE)
    found = {_plain(match[1]) for line in reply.splitlines() if (match := pattern.fullmatch(line))}
    return found.pop() if len(found) == 1 else None


def word(value: Any) -> str:
    """A grade in lower case; "" for what is no text."""
    return value.strip().lower() if isinstance(value, str) else ""
