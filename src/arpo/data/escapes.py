r"""Control characters in texts, above all those that a lost backslash made.

`"\boxed"` written in a language where `\b` is a backspace becomes U+0008 and `oxed`; `\frac` loses to the form feed in
the same way, `\text` to a tab, `\right` to a carriage return. A prompt with such an accident shows the policy a
format that does not exist. What was meant is known where the rest of a LaTeX command follows, and only there it is put
back. Elsewhere a tab or a carriage return is what it is, and any other control character is none of the text's.
"""

import re
from collections.abc import Callable

_COMMANDS = {
    "\x07": ("a", "alpha angle approx arccos arcsin arctan ast asymp aleph"),
    "\x08": (
        "b",
        "boxed backslash bar because begin beta bf big bigcap bigcup bigg biggl biggr bigl bigoplus bigr bigtriangleup "
        "binom blacksquare bm bmod boldsymbol bot bullet",
    ),
    "\t": ("t", "tan tanh tau tbinom text textbf textit textrm tfrac theta therefore tilde times triangle triangleq"),
    "\x0b": ("v", "varepsilon varnothing varphi vartheta vdots vec vee vert vphantom vspace"),
    "\x0c": ("f", "fbox flat forall frac frown"),
    "\r": ("r", "rangle rceil rfloor rho right rightarrow rightharpoonup rm"),
}
_WORDS = {"\t": ("tan", "tau", "text", "tilde"), "\r": ("rm",)}
"""Commands whose rest could begin a line or a column (`an`, `ext`, `m`): only where a brace or bracket follows."""


def _pattern(sign: str, names: str) -> str:
    rests = sorted((name[1:] for name in names.split() if name not in _WORDS.get(sign, ())), key=len, reverse=True)
    plain = rf"(?:{'|'.join(rests)})(?![a-zA-Z])"
    followed = "|".join(name[1:] for name in _WORDS.get(sign, ()))
    return f"{sign}(?={plain}|(?:{followed})\\s*[{{(\\[\\\\])" if followed else f"{sign}(?={plain})"


_BROKEN = re.compile("|".join(_pattern(sign, names) for sign, (_, names) in _COMMANDS.items()))
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")


def mended(text: str) -> tuple[str, int]:
    """The text with the backslashes of broken LaTeX commands put back, and how many there were."""
    return _BROKEN.subn(lambda match: "\\" + _COMMANDS[match.group()][0], text)


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
