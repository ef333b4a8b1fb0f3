r"""Is an answer right? Comparisons from 0 to 1, none of which ever evaluates text.

By default ("hybrid") the gold answer decides: numbers are compared as numbers, choices as letters, anything else that
holds digits or LaTeX as a string, and only words by F1 (`words.py` says why).
"""

import re
from collections.abc import Iterable
from typing import Literal

from arpo.reward.gaia import score_gaia
from arpo.reward.numbers import parse_number, same_number
from arpo.reward.words import exact, f1, f1_cjk, normalise
from arpo.task import AnswerKind

Mode = Literal["hybrid", "paper", "f1", "em", "math", "f1_cjk", "gaia"]

_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*(?:\)|[.:)].*|)", re.DOTALL)
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")


def best_score(
    prediction: str | None, golds: Iterable[str], *, mode: Mode = "hybrid", kind: AnswerKind | None = None
) -> float:
    """The best of `score_answer` over the gold answers."""
    return max((score_answer(prediction, gold, mode=mode, kind=kind) for gold in golds), default=0.0)


def score_answer(prediction: str | None, gold: str, *, mode: Mode = "hybrid", kind: AnswerKind | None = None) -> float:
    """How right `prediction` is, 0 to 1. Nothing, or only blanks, is worth 0 whatever the gold answer says.

    `kind`: what sort of answer the task expects; None or "auto": the gold answer decides.
    """
    if prediction is None or not prediction.strip():
        return 0.0
    if mode == "hybrid":
        return _hybrid(prediction, gold, kind or "auto")
    if mode == "math":
        return _hybrid(prediction, gold, "math")
    if mode == "em":
        return exact(prediction, gold)
    if mode == "f1_cjk":
        return f1_cjk(prediction, gold)
    return score_gaia(prediction, gold) if mode == "gaia" else f1(prediction, gold)


def _hybrid(prediction: str, gold: str, kind: AnswerKind) -> float:
    how = _kind_of(gold, kind) if kind in ("auto", "text") else kind
    if how == "number":
        return float(_numbers_equal(prediction, gold))
    if how == "choice":
        return float(_choice(prediction) is not None and _choice(prediction) == _choice(gold))
    if how == "math":
        return float(_numbers_equal(prediction, gold) or _bare(prediction) == _bare(gold))
    return float(_spaced(prediction) == _spaced(gold)) if how == "exact" else f1(prediction, gold)


def _kind_of(gold: str, kind: AnswerKind) -> AnswerKind:
    """How to compare with this gold answer; "text" means by F1.

    A task that says "text" means words even where they hold digits.
    """
    if parse_number(gold) is not None:
        return "number"
    if _choice(gold) is not None and len(gold.strip()) <= 3:
        return "choice"
    symbolic = "\\" in gold or not normalise(gold) or (kind == "auto" and any(char.isdigit() for char in gold))
    return "math" if symbolic else "text"


def _numbers_equal(prediction: str, gold: str) -> bool:
    mine, theirs = parse_number(prediction), parse_number(gold)
    return mine is not None and theirs is not None and same_number(mine, theirs)


def _choice(text: str) -> str | None:
    """The letter of a multiple-choice answer: `B`, `(b)`, `B.`, `B) Paris`, `\\text{B}`."""
    match = _CHOICE.fullmatch(_WRAPPED.sub(r"\1", text).strip())
    return match[1].upper() if match else None


def _bare(text: str) -> str:
    """For symbols: no blanks, no `\\left` and `\\right`, no text commands, no final full stop; case does not count."""
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", _WRAPPED.sub(r"\1", text))
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    return re.sub(r"\s+|\\[,;! ]", "", text).rstrip(".").casefold()


def _spaced(text: str) -> str:
    return " ".join(text.split()).casefold()
