r"""Reading `\boxed{...}`: the last one, with braces counted."""

import re

_COMMAND = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE = re.compile(r"[^\s$<{}]+")


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed` (or `\fbox`) in `text` holds, without outer blanks; None without one.

    `\boxed {x}` and `\boxed 5` count; escaped braces do not open or close anything; unbalanced braces give None.
    """
    commands = list(_COMMAND.finditer(text))
    if not commands:
        return None
    rest = text[commands[-1].end() :]
    if rest.startswith("{"):
        return _braced(rest)
    bare = _BARE.match(rest)
    return bare[0] if bare else None


def _braced(text: str) -> str | None:
    """The content of the brace group at the start of `text`."""
    depth, place = 0, 0
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[1:place].strip()
        place += 1
    return None
