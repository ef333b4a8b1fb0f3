r"""Control characters in texts, above all those that a lost backslash made.

`"\boxed"` written in a language where `\b` is a backspace becomes U+0008 and `oxed`; `\frac` loses to the form feed in
the same way, `\text` to a tab, `\right` to a carriage return. A prompt with such an accident shows the policy a
format that does not exist. What was meant is known where the rest of a LaTeX command follows, and only there it is put
back; a tab or a carriage return before other letters is what it is.
"""

import re
from collections.abc import Callable

_ALWAYS = {"\x07": "a", "\x08": "b", "\x0b": "v", "\x0c": "f"}
_SOMETIMES = {
    "\t": ("t", r"ext(?:bf|it|rm)?\s*\{|imes(?![a-z])|heta(?![a-z])|frac\s*\{|herefore|ilde\s*\{|riangle"),
    "\r": ("r", r"ight(?![a-z])|ight(?:arrow|harpoon)|angle(?![a-z])|ceil(?![a-z])|floor(?![a-z])"),
}
_BROKEN = re.compile(
    r"([\x07\x08\x0b\x0c])(?=[a-zA-Z])|" + "|".join(f"({sign})(?={rest})" for sign, (_, rest) in _SOMETIMES.items())
)
_LETTERS = _ALWAYS | {sign: letter for sign, (letter, _) in _SOMETIMES.items()}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")


def mended(text: str) -> tuple[str, int]:
    """The text with the backslashes of broken LaTeX commands put back, and how many there were."""
    return _BROKEN.subn(lambda match: "\\" + _LETTERS[match.group()], text)


def broken(text: str) -> re.Match[str] | None:
    """The first control character that was the beginning of a LaTeX command."""
    return _BROKEN.search(text)


def stray(text: str) -> re.Match[str] | None:
    """The first control character, bidirectional override or lone surrogate that no text needs; tab, newline and
    carriage return are none of these."""
    return None if text.isascii() and text.isprintable() else _CONTROL.search(text)


def without_stray(text: str) -> tuple[str, int]:
    """The text without such characters, and how many there were. What stood for a character leaves U+FFFD."""
    put: Callable[[re.Match[str]], str] = lambda match: "\ufffd" if "\ud800" <= match.group() <= "\udfff" else ""
    return _CONTROL.subn(put, text)


def visible(text: str) -> str:
    """The text on one line, with what cannot be seen written as an escape."""
    return _SHOWN.sub(lambda match: _escape(match.group()), text)


def excerpt(text: str, at: int = 0, *, length: int = 80) -> str:
    """About `length` characters around place `at`, on one line, made visible."""
    start = max(0, min(at - length // 3, len(text) - length))
    piece = visible(text[start : start + length])
    return f"{'…' if start else ''}{piece}{'…' if start + length < len(text) else ''}"


def _escape(sign: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(sign) or (
        f"\\x{ord(sign):02x}" if ord(sign) < 256 else f"\\u{ord(sign):04x}"
    )
