r"""Numbers as people and models write them, read exactly and without guessing.

`1,000`, `$1,234.50`, `83,871 sq km`, `97.8%`, `1/2`, `\frac12`, `6.02\times10^{23}`, `5 million`, full-width digits and
the Unicode minus are read. `1.234,5`, `12:00`, `1331 and 1728`, `\pm 3` and `\pi` are not numbers here: what needs
a locale or an evaluator is left to text comparison. Values are exact fractions; nothing is ever evaluated.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

TOLERANCE = Fraction(1, 10**12)
"""Relative: forgives the last digits of floating-point output, and is below one unit of any integer up to 10^12."""
_LONGEST = 200
_LARGEST_EXPONENT = 400

_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x2212: ord("-"), 0x2013: ord("-"), 0xA0: ord(" ")}
_LATEX: tuple[tuple[str, str], ...] = (
    (r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r" \1 "),
    (r"\^\s*\{?\s*\\circ\s*\}?|°", ""),
    (r"\\([%$])", r"\1"),
    (r"\\[,;:! ]|\{,\}(?=\d{3})", ""),
    (r"\\[dt]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}", r" \1/\2"),
    (r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2"),
    (r"\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*\{?\s*([+-]?\d+)\s*\}?", r"e\1"),
)
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*[$€£¥]?\s*(?P<sign2>[+-]?)(?P<value>{_PLAIN})(?:[eE](?P<exponent>[+-]?\d+))?"
    rf"(?:\s*/\s*(?P<over>{_PLAIN}))?\s*(?P<unit>[A-Za-zµ%€$][A-Za-zµ%²³./\s-]*(?:\^?\{{?[23]\}}?)?)?"
)
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NO_UNIT = frozenset({"and", "or", "to", "but", "not", "is"})
"""Words after a number that make it a sentence or a range."""


@dataclass(frozen=True, slots=True)
class Number:
    """A value and whether it was followed by a percent sign (or the word)."""

    value: Fraction
    percent: bool = False

    @property
    def readings(self) -> tuple[Fraction, ...]:
        """50 % may be meant as 50 or as 0.5."""
        return (self.value, self.value / 100) if self.percent else (self.value,)


def parse_number(text: str) -> Number | None:
    """The number that `text` is, with or without a unit; None if it is anything else."""
    if len(text) > _LONGEST:
        return None
    text = text.translate(_WIDE).strip().strip("$").rstrip(".")
    for pattern, replacement in _LATEX:
        text = re.sub(pattern, replacement, text)
    match = _NUMBER.fullmatch(text.strip())
    return _number(match) if match else None


def _number(match: re.Match[str]) -> Number | None:
    exponent = int(match["exponent"] or 0) if len(match["exponent"] or "") <= 5 else _LARGEST_EXPONENT + 1
    over = Fraction((match["over"] or "1").replace(",", ""))
    unit = (match["unit"] or "").lower().split()
    if abs(exponent) > _LARGEST_EXPONENT or over == 0 or (match["sign"] and match["sign2"]) or _NO_UNIT & set(unit):
        return None
    value = Fraction(match["value"].replace(",", "")) * Fraction(10) ** exponent / over
    scale = _SCALES.get(unit[0], 1) if unit else 1
    percent = bool(unit) and (unit[0].startswith("%") or unit[0] in ("percent", "percentage", "pct"))
    return Number((-value if "-" in (match["sign"], match["sign2"]) else value) * scale, percent)


def same_number(one: Number, other: Number) -> bool:
    """Equal within the tolerance; a percentage also equals its hundredth, and signs always count."""
    return any(_close(a, b) for a in one.readings for b in other.readings)


def _close(a: Fraction, b: Fraction) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
