r"""Numbers as people and models write them, read exactly and without guessing.

`1,000`, `$1,234.50`, `83,871 sq km`, `97.8%`, `1/2`, `\frac12`, `6.02\times10^{23}`, `5 million`, full-width digits and
the Unicode minus are read. `1.234,5`, `12:00`, `1331 and 1728`, `\pm 3`, `4ab` and `\pi` are not numbers here: what
needs a locale or an evaluator is left to others. Values are exact fractions; nothing is ever evaluated.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from arpo.reward.folding import folded, undelimited
from arpo.reward.units import NO_UNIT, Unit, parse_unit

TOLERANCE = Fraction(1, 10**12)
"""Relative: forgives the last digits of floating-point output, and is below one unit of any integer up to 10^12."""
_LONGEST = 200
_LARGEST_EXPONENT = 400

_LATEX: tuple[tuple[str, str], ...] = (
    (
        r"\\(?:text|mathrm|mathbf|textbf|mathit|textit|textrm|operatorname|mbox|hbox)\s*\{([^{}]*?)\s*\}(\^\{?[23]\}?)?",
        " \x00\\1\\2 ",
    ),
    (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", "°"),
    (r"\\([%$])", r"\1"),
    (r"(?<=\d)(?:\\[,;:! ]|\{,\}|~)(?=\d{3}(?!\d))", ""),
    (r"\\(?:[,;:! ]|(?:quad|thinspace)(?![A-Za-z]))|~", " "),
    (r"\\[dt]?frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}", r" \1/\2"),
    (r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2"),
    (r"\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*\{?\s*([+-]?\d+)\s*\}?", r"e\1"),
)
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<currency>[$€£¥]?)\s*(?P<sign2>[+-]?)(?P<value>{_PLAIN})(?:[eE](?P<exponent>[+-]?\d+))?"
    rf"(?:\s*/\s*(?P<over>{_PLAIN}))?(?P<after>\s*[^\W\d_].*|\s*[%°€$£¥¢\x00].*)?",
    re.DOTALL,
)
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "bn": 10**9}
_SCALES |= {"trillion": 10**12}
_PERCENT = re.compile(r"%|(?:percent|percentage|pct|per cent)(?![^\W\d_])")


@dataclass(frozen=True, slots=True)
class Number:
    """A value, whether it was followed by a percent sign (or the word), and what it is a number of."""

    value: Fraction
    percent: bool = False
    unit: Unit = NO_UNIT

    @property
    def readings(self) -> tuple[Fraction, ...]:
        """50 % may be meant as 50 or as 0.5."""
        return (self.value, self.value / 100) if self.percent else (self.value,)


def parse_number(text: str, *, algebra: bool = False) -> Number | None:
    """The number that `text` is, with or without a unit; None if it is anything else.

    `algebra`: letters may be variables, so that a unit of one letter counts only if it is set as a word
    (`5\\text{ m}`), and other words only from four letters on.
    """
    if len(text) > _LONGEST:
        return None
    text = undelimited(folded(text)).rstrip(".")
    for pattern, replacement in _LATEX:
        text = re.sub(pattern, replacement, text)
    match = _NUMBER.fullmatch(text.strip())
    return _number(match, algebra) if match else None


def _number(match: re.Match[str], algebra: bool) -> Number | None:
    exponent = int(match["exponent"] or 0) if len(match["exponent"] or "") <= 5 else _LARGEST_EXPONENT + 1
    over = Fraction((match["over"] or "1").replace(",", ""))
    of = _of(match["after"] or "", match["currency"], algebra)
    if of is None or abs(exponent) > _LARGEST_EXPONENT or over == 0 or (match["sign"] and match["sign2"]):
        return None
    scale, percent, unit = of
    value = Fraction(match["value"].replace(",", "")) * Fraction(10) ** exponent / over
    return Number((-value if "-" in (match["sign"], match["sign2"]) else value) * scale, percent, unit)


def _of(after: str, currency: str, algebra: bool) -> tuple[int, bool, Unit] | None:
    """What follows a number: its scale, whether it is a percentage, its unit. None: it is no number with that."""
    words = after.replace("\x00", " ").strip()
    head, _, rest = words.partition(" ")
    scale = _SCALES.get(head.lower(), 1)
    words = rest.strip() if scale > 1 else words
    percent = _PERCENT.match(words.lower())
    words = words[percent.end() :].strip() if percent else words
    unit = parse_unit(words)
    if unit is None or not _may_follow(after, unit, scale, algebra):
        return None
    if not currency:
        return scale, percent is not None, unit
    named = parse_unit(currency) or NO_UNIT
    return (scale, percent is not None, Unit(named.name, unit.counted)) if named.fits(unit) else None


def _may_follow(after: str, unit: Unit, scale: int, algebra: bool) -> bool:
    """Whether letters right after a number are its unit and no variables."""
    if "\x00" in after or scale > 1 or not (unit.name or unit.counted):
        return True
    apart = after[:1].isspace() or not after[:1].isalpha()
    long = len(unit.name) > 1 or not unit.name.isalpha()
    if not apart:
        return long and unit.name != "" and not unit.counted
    return not algebra or (long and all(len(word) > 3 for word in unit.counted))


def same_number(one: Number, other: Number) -> bool:
    """Equal within the tolerance, units that do not contradict each other; a percentage also equals its hundredth."""
    return one.unit.fits(other.unit) and any(_close(a, b) for a in one.readings for b in other.readings)


def _close(a: Fraction, b: Fraction) -> bool:
    return a == b or abs(a - b) < TOLERANCE * max(abs(a), abs(b))
