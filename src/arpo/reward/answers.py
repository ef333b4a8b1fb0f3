r"""Is an answer right? Comparisons from 0 to 1, none of which ever evaluates text.

The usual F1 of question answering (SQuAD's normalisation) deletes punctuation, and with it signs, decimal points and
fraction bars: it finds -5 equal to 5 and 1.5 equal to 15, and the choice "A" is an article to it. It is offered
unchanged under "f1" and "em". By default the gold answer decides: numbers are compared as numbers, choices as letters,
anything else that holds digits or LaTeX as a string, and only words by F1.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from arpo.reward.numbers import parse_number, same_number
from arpo.task import AnswerKind

Comparison = AnswerKind | Literal["f1", "em"]

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})
_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*(?:\)|[.:)].*|)", re.DOTALL)
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")


def best_score(prediction: str | None, golds: Iterable[str], kind: Comparison = "auto") -> float:
    """The best of `score_answer` over the gold answers."""
    return max((score_answer(prediction, gold, kind) for gold in golds), default=0.0)


def score_answer(prediction: str | None, gold: str, kind: Comparison = "auto") -> float:
    """How right `prediction` is, 0 to 1. Nothing, or only blanks, is worth 0 whatever the gold answer says."""
    if prediction is None or not prediction.strip():
        return 0.0
    if kind in ("auto", "text"):
        kind = _kind_of(gold, kind)
    if kind == "number":
        return float(_numbers_equal(prediction, gold))
    if kind == "choice":
        return float(_choice(prediction) is not None and _choice(prediction) == _choice(gold))
    if kind == "math":
        return float(_numbers_equal(prediction, gold) or _bare(prediction) == _bare(gold))
    if kind == "exact":
        return float(_spaced(prediction) == _spaced(gold))
    return f1(prediction, gold) if kind == "f1" else exact(prediction, gold)


def _kind_of(gold: str, kind: Comparison) -> Comparison:
    """How to compare with this gold answer. A task that says "text" means words even where they hold digits."""
    if parse_number(gold) is not None:
        return "number"
    if _choice(gold) is not None and len(gold.strip()) <= 3:
        return "choice"
    symbolic = "\\" in gold or not normalise(gold) or (kind == "auto" and any(char.isdigit() for char in gold))
    return "math" if symbolic else "f1"


def normalise(text: str) -> str:
    """SQuAD's normal form: lower case, ASCII punctuation deleted, articles blanked, blanks collapsed."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(prediction: str, gold: str) -> float:
    """Overlap of words as multisets, after `normalise`. Yes, no and "noanswer" match only themselves (HotpotQA)."""
    mine, theirs = normalise(prediction), normalise(gold)
    if mine != theirs and (mine in _CLOSED or theirs in _CLOSED):
        return 0.0
    left, right = mine.split(), theirs.split()
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right)) if common else 0.0


def exact(prediction: str, gold: str) -> float:
    """1 if both have the same SQuAD normal form."""
    return float(normalise(prediction) == normalise(gold))


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
