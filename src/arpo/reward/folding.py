r"""One spelling for what is the same text: Unicode's compatibility forms, dashes and quotes, LaTeX that only decorates.

NFKC folds full-width digits, ligatures and the like. It would also turn 10² into 102 and ② into 2, so raised and
lowered characters become `^{2}` and `_{2}` instead, and circled ones stay what they are.
"""

import re
import unicodedata

_PLAIN = {0x2212: "-", 0x2010: "-", 0x2011: "-", 0x2012: "-", 0x2013: "-", 0x2018: "'", 0x2019: "'", 0x201C: '"'}
_PLAIN |= {0x201D: '"', 0x2044: "/", 0xA0: " ", 0x200B: "", 0xFEFF: ""}
_RAISED, _LOWERED, _CIRCLED = "<super>", "<sub>", "<circle>"
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mathit|textit|textrm|operatorname|mbox|hbox)\s*\{([^{}]*)\}")
_SPACES = re.compile(
    r"\\(?:[,;:! ]|(?:quad|qquad|thinspace|medspace|enspace|space|left|right|displaystyle)(?![A-Za-z]))"
)
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


def folded(text: str) -> str:
    """`text` in NFKC, with ASCII dashes and quotes and with raised and lowered characters written as in LaTeX."""
    if text.isascii():
        return text
    return "".join(map(_folded, _runs(text))).translate(_PLAIN)


def _runs(text: str) -> list[str]:
    """The text cut so that neighbours that are raised (or lowered, or circled) alike stay together."""
    runs: list[str] = []
    last = ""
    for char in text:
        tag = _tag(char)
        if runs and tag == last:
            runs[-1] += char
        else:
            runs.append(char)
        last = tag
    return runs


def _tag(char: str) -> str:
    tag = unicodedata.decomposition(char).partition(" ")[0]
    return tag if tag in (_RAISED, _LOWERED, _CIRCLED) else ""


def _folded(run: str) -> str:
    tag, plain = _tag(run[0]), unicodedata.normalize("NFKC", run)
    if tag == _CIRCLED:
        return run
    return {_RAISED: f"^{{{plain}}}", _LOWERED: f"_{{{plain}}}"}.get(tag, plain)


def same_text(one: str, other: str) -> bool:
    """Whether both are the same string but for blanks, case and Unicode's compatibility forms; lowered ones, too."""
    return _spaced(one) == _spaced(other)


def _spaced(text: str) -> str:
    if text.isascii() or any(_tag(char) in (_RAISED, _CIRCLED) for char in text):
        text = folded(text)
    else:
        text = unicodedata.normalize("NFKC", text).translate(_PLAIN)
    return " ".join(text.split()).casefold()


def unwrapped(text: str) -> str:
    r"""Without the commands that set words in a formula: `\text{B}` is `B`."""
    return _WRAPPED.sub(r"\1", text)


def bare(text: str) -> str:
    r"""For symbols: no blanks, signs around formulas, text commands or final full stop; case does not count."""
    text = _SPACES.sub("", unwrapped(undelimited(text)))
    return re.sub(r"\s+", "", _FRACTION.sub(r"\\frac", text)).rstrip(".").casefold()


def undelimited(text: str) -> str:
    r"""Without the signs around a formula: `$x$`, `$$x$$`, `\(x\)`, `\[x\]`."""
    text = text.strip()
    for start, end in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = text[len(start) : len(text) - len(end)]
        if text.startswith(start) and text.endswith(end) and len(text) > len(start + end) and start not in inner:
            return inner.strip()
    return text
