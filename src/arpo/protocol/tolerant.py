"""Reading JSON that a policy wrote: strictly, or with a short list of repairs that are told by name.

Strict is the default in training: a call that is quietly mended earns the same reward as a right one, so the policy
never learns to write it. Strict here also means what `json.loads` lets pass: NaN, a key that stands twice (the last one
would win in silence), half a surrogate pair (no file could store it). Whatever is wrong is an `UnreadableError`, never
another exception, however deep or long the text is.

Repairs, where asked for: raw line breaks in strings, closing brackets too many or too few, trailing commas, Python's
quotes and constants. A string that does not end is not mended, because nobody knows how it would have gone on.
"""

import ast
import json
import re
from typing import Any, NoReturn

LONGEST = 200_000
"""Characters of one call; more is refused before anything parses it."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_NEXT_OBJECT = re.compile(r"(?:\s*;)?\s*(?=\{)")
_FENCE_OPENER = re.compile(r"```[\w+-]*[ \t]*\n")
_SPARE_CLOSERS = re.compile(r"[\s}\];]*")
_BROKEN = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_PLACEHOLDER = "\ue000"


class UnreadableError(ValueError):
    """The text is no JSON; the message says why, for the policy to read."""


def load(text: str, repair: bool = False) -> tuple[Any, str | None]:
    """The value that `text` is and what was mended (None if nothing was). Raises UnreadableError."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it has more than {LONGEST} characters")
    try:
        return strictly(text), None
    except UnreadableError:
        mended = _mended(text) if repair else None
        if mended is None:
            raise
        return mended


def strictly(text: str) -> Any:
    """The value that `text` is. Raises UnreadableError."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UnreadableError(f"{error.msg} at character {error.pos + 1}") from error
    except UnicodeEncodeError as error:
        raise UnreadableError("half a surrogate pair") from error
    except UnreadableError:
        raise
    except _BROKEN as error:
        raise UnreadableError("it is nested too deep, or a number is too long") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise UnreadableError(f"{name} is no JSON")


def _mended(text: str) -> tuple[Any, str] | None:
    """The first of the repairs that makes `text` readable, alone or on top of those before it."""
    steps: list[str] = []
    for name, mend in (("brackets", _brackets), ("commas", _commas), ("line breaks", _line_breaks)):
        changed = mend(text)
        if changed != text:
            text, steps = changed, [*steps, name]
            try:
                return strictly(text), ", ".join(steps)
            except UnreadableError:
                continue
    value = _python(text)
    return None if value is None else (value, ", ".join([*steps, "python literals"]))


def _brackets(text: str) -> str:
    """`text` with the closing brackets that its end lacks, or without those that it has too many."""
    open_ones: list[str] = []
    bare = _STRING.sub(lambda match: _PLACEHOLDER * len(match[0]), text)
    for place, char in enumerate(bare):
        if char in "{[":
            open_ones.append("}" if char == "{" else "]")
        elif char in "}]":
            if not open_ones or open_ones.pop() != char:
                return text
            if not open_ones and _SPARE_CLOSERS.fullmatch(bare, place + 1):
                return text[: place + 1]
    return text if '"' in bare else text.rstrip() + "".join(reversed(open_ones))


def _commas(text: str) -> str:
    """`text` without commas before a closing bracket, outside of strings."""
    strings = _STRING.findall(text)
    bare = _TRAILING_COMMA.sub("", _STRING.sub(_PLACEHOLDER, text))
    if _PLACEHOLDER in text:
        return text
    parts = bare.split(_PLACEHOLDER)
    return parts[0] + "".join(string + part for string, part in zip(strings, parts[1:], strict=True))


def _line_breaks(text: str) -> str:
    """`text` with line breaks and tabs inside strings escaped."""
    escapes = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return _STRING.sub(lambda match: re.sub(r"[\n\r\t]", lambda char: escapes[char[0]], match[0]), text)


def _python(text: str) -> Any:
    """The Python literal that `text` is, if JSON can say the same; else None. Nothing is evaluated."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if any(_repeats(node) for node in ast.walk(tree)):
            return None
        value = ast.literal_eval(tree)
        return strictly(json.dumps(value, allow_nan=False))
    except _BROKEN:
        return None


def _repeats(node: ast.AST) -> bool:
    """True for a dict in which a key stands twice."""
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)] if isinstance(node, ast.Dict) else []
    return len(set(keys)) < len(keys)


def unfenced(text: str) -> str | None:
    """What stands in the one code fence that `text` is; None if it is anything else. Linear in its length."""
    text = text.strip()
    opener = _FENCE_OPENER.match(text)
    if opener is None or not text.endswith("```") or opener.end() > len(text) - 3:
        return None
    return text[opener.end() : -3].rstrip(" \t").removesuffix("\n")


def objects(text: str) -> list[tuple[int, int]]:
    """Where the JSON objects of `text` stand, one behind the other and divided by `;` or blanks.

    What cannot be read, and what follows it, belongs to the last one.
    """
    decoder = json.JSONDecoder()
    spans: list[tuple[int, int]] = []
    place = 0
    while True:
        try:
            _, end = decoder.raw_decode(text, place)
        except _BROKEN:
            return [*spans, (place, len(text))]
        follows = _NEXT_OBJECT.match(text, end)
        if follows is None:
            return [*spans, (place, len(text))]
        spans.append((place, end))
        place = follows.end()
