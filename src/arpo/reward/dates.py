"""Dates as people write them, where there is one way only to read them.

"April 4, 2016", "4th of April 2016", "Monday, 4 Apr. 2016", "2016-04-04", "2016/4/4" and "2016年4月4日" are one day.
"03/04/2016" may be March or April and is no date here; "25/04/2016" can only be one. "April 2016" is a month.
"""

import datetime
import re

from arpo.reward.folding import folded

_NAMES = (
    ("january", "jan"),
    ("february", "feb"),
    ("march", "mar"),
    ("april", "apr"),
    ("may",),
    ("june", "jun"),
    ("july", "jul"),
    ("august", "aug"),
    ("september", "sept", "sep"),
    ("october", "oct"),
    ("november", "nov"),
    ("december", "dec"),
)
_MONTHS = {name: number for number, names in enumerate(_NAMES, start=1) for name in names}
_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\.?"
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
_BEFORE = r"(?:on\s+)?(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+)?(?:the\s+)?"
_FORMS = tuple(
    re.compile(_BEFORE + form)
    for form in (
        rf"{_MONTH}\s*{_DAY}\s*,?\s*{_YEAR}",
        rf"{_DAY}\s*(?:of\s+)?{_MONTH}\s*,?\s*(?:of\s+)?{_YEAR}",
        r"(?P<year>\d{4})(?P<cut>[-/.])(?P<month>\d{1,2})(?P=cut)(?P<day>\d{1,2})",
        r"(?P<year>\d{4})\s*年\s*(?P<month>\d{1,2})\s*月\s*(?P<day>\d{1,2})\s*[日号]",
        rf"{_MONTH}\s*,?\s*(?:of\s+)?{_YEAR}",
        rf"{_YEAR},?\s+{_MONTH}(?:\s+{_DAY})?",
    )
)
_EITHER = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")
_LONGEST = 60

Date = tuple[int, int, int]
"""Year, month, day; day 0: the whole month."""


def parse_date(text: str) -> Date | None:
    """The day or month that `text` is; None if it is anything else, or could be two days."""
    if len(text) > _LONGEST:
        return None
    text = " ".join(folded(text).lower().split()).rstrip(".")
    for form in _FORMS:
        if match := form.fullmatch(text):
            found = match.groupdict()
            return _real(int(found["year"]), _month(found["month"]), int(found.get("day") or 0))
    match = _EITHER.fullmatch(text)
    return _either(int(match[1]), int(match[3]), int(match[4])) if match else None


def _month(text: str) -> int:
    return int(text) if text.isdigit() else _MONTHS[text]


def _either(one: int, other: int, year: int) -> Date | None:
    """A day and a month in unknown order."""
    readings = {date for date in (_real(year, one, other), _real(year, other, one)) if date is not None and date[2]}
    return readings.pop() if len(readings) == 1 else None


def _real(year: int, month: int, day: int) -> Date | None:
    """None for a day that no calendar has."""
    try:
        datetime.date(year, month, day or 1)
    except ValueError:
        return None
    return year, month, day
