r"""Boxes (`\boxed{...}`, `\fbox{...}`) in prompts and gold answers, and whether their braces match.

A check wants to know of every box where it ends and whether another lies in it; what a trajectory's answer is, the
reward room decides. An escaped brace is a character, not a brace.
"""

import re
from dataclasses import dataclass

_OPEN = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*\{")
_SIGN = re.compile(r"\\.|[{}]", re.DOTALL)
_PAIRS = tuple(
    (re.compile(opening), re.compile(closing))
    for opening, closing in (
        (r"\\begin(?=\{)", r"\\end(?=\{)"),
        (r"\\left(?![a-zA-Z])", r"\\right(?![a-zA-Z])"),
        (r"(?<!\\)\\\(", r"(?<!\\)\\\)"),
        (r"(?<!\\)\\\[", r"(?<!\\)\\\]"),
    )
)


@dataclass(frozen=True, slots=True)
class Box:
    """A box: where `\\boxed` stands, what is in it (None: its brace is never closed), whether it lies in another."""

    start: int
    content: str | None
    nested: bool


def boxes(text: str) -> list[Box]:
    """All boxes of a text, in order; `\\boxed 5`, which has no braces, is none."""
    found: list[Box] = []
    outer = 0
    for match in _OPEN.finditer(text):
        end = _closing(text, match.end())
        found.append(Box(match.start(), None if end is None else text[match.end() : end], match.start() < outer))
        outer = max(outer, len(text) if end is None else end)
    return found


def _closing(text: str, start: int) -> int | None:
    """The place of the brace that closes one opened before `start`."""
    depth = 1
    for match in _SIGN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return match.start()
    return None


def unbalanced(text: str) -> int | None:
    """The place of the first brace without a partner, None if all have one."""
    opened: list[int] = []
    for match in _SIGN.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}":
            if not opened:
                return match.start()
            opened.pop()
    return opened[0] if opened else None


def torn(text: str) -> int | None:
    r"""The place of half a LaTeX pair (`\end{aligned}` alone, `\right` without `\left`, `\)` without `\(`), or None."""
    for opening, closing in _PAIRS:
        opened, closed = list(opening.finditer(text)), list(closing.finditer(text))
        if len(opened) != len(closed):
            return min(match.start() for match in (*opened, *closed))
    return None
