"""Text that came out of a model or a tool, made safe and visible for a page; and numbers as people read them."""

import html
import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """`text` for HTML content or a quoted attribute: escaped, and control characters (terminal codes, text direction)
    shown by their code points instead of obeyed."""
    visible = _CONTROL.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", text)
    return html.escape(visible, quote=True)


def percent(share: float, digits: int = 1) -> str:
    """0.634 as 63.4 %."""
    return f"{100 * share:.{digits}f}\u202f%"


def points(difference: float) -> str:
    """A difference of shares in percentage points, always with its sign: +2.1."""
    return f"{100 * difference:+.1f}".replace("-", "\u2212")


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "\u2212")


def number(value: float) -> str:
    """1204000 as 1,204,000."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """A tick label: 0, 250k, 1.2M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def duration(seconds: float) -> str:
    """2 min 30 s."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest}\u202fs"
    return f"{minutes}\u202fmin {rest}\u202fs" if rest else f"{minutes}\u202fmin"
