r"""The default comparison: what sort of answer the gold answer is decides how it is compared.

Numbers are compared as numbers with their units, dates as days, choices as letters, formulas by characters and, where
that says no, by their meaning; words by F1. What needs a computer algebra system is not decided here but handed back as
a question, so that many answers can be asked about at once and nothing here can take long.
"""

import re
from dataclasses import dataclass

from arpo.reward.choices import is_choice, labelled, same_choice, same_letters
from arpo.reward.dates import parse_date
from arpo.reward.folding import bare, folded, same_text, unwrapped
from arpo.reward.numbers import Number, parse_number, same_number
from arpo.reward.symbols import is_computable, is_formula, latex, names_value, words_of
from arpo.reward.units import without_unit
from arpo.reward.words import exact, f1_numbers
from arpo.task import AnswerKind

LONGEST = 4000
"""Characters of an answer beyond which nobody is asked about it."""
_RANGE = re.compile(r"\d+(?:\s*-\s*\d+)+")


@dataclass(frozen=True, slots=True)
class Question:
    """Do these mean the same? In LaTeX; the gold answer comes first because the comparison is not symmetric.

    `stock`: compare as math-verify does by itself, which takes any of some hundred words and letters at the end of a
    formula for a unit and drops it (`4ab` is 4 then). Otherwise units have been dealt with, and letters are variables.
    """

    gold: str
    prediction: str
    stock: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """`score`, 0 to 1, unless there is a `question`: then 1 if the answer to it is yes, and `score` if it is no."""

    score: float
    question: Question | None = None


def rule(prediction: str, gold: str, kind: AnswerKind) -> Ruling:
    """Compare by rules. Neither answer is blank; boxes are opened already."""
    if same_text(prediction, gold):
        return Ruling(1.0)
    prediction, gold = folded(prediction), folded(gold)
    how = _kind_of(gold, kind) if kind in ("auto", "text") else kind
    if how == "number":
        return _number(prediction, gold, ask=kind != "number")
    if how == "math":
        return _math(prediction, gold)
    return Ruling(_score(prediction, gold, how))


def _kind_of(gold: str, kind: AnswerKind) -> AnswerKind:
    """How to compare with this gold answer; "text" means by F1.

    A task that says "text" means words even where they are digits and signs only.
    """
    if parse_date(gold) is not None:
        return "date"
    if parse_number(gold) is not None:
        return "number"
    if is_choice(gold):
        return "choice"
    if _RANGE.fullmatch(gold.strip()):
        return "exact"
    return "math" if is_formula(gold, latex=kind == "text") or not re.search(r"[^\W_]", gold) else "text"


def _score(prediction: str, gold: str, how: AnswerKind) -> float:
    """Kinds that need no algebra."""
    if how == "choice":
        return float(same_choice(prediction, gold))
    if how == "exact":
        return float("".join(prediction.split()).casefold() == "".join(gold.split()).casefold())
    if how == "date":
        return _date(prediction, gold)
    if same_letters(prediction, gold):
        return 1.0
    return f1_numbers(unwrapped(prediction), unwrapped(gold))


def _date(prediction: str, gold: str) -> float:
    """Two days, or two months, are equal or not; a day against a month, or anything else, is compared by words."""
    mine, theirs = parse_date(prediction), parse_date(gold)
    if mine is None or theirs is None or bool(mine[2]) != bool(theirs[2]):
        return f1_numbers(prediction, gold)
    return float(mine == theirs)


def _number(prediction: str, gold: str, *, ask: bool) -> Ruling:
    """The gold answer is a number, or should be one. `ask`: whether the prediction may be a formula."""
    mine, theirs = parse_number(prediction), parse_number(gold)
    if mine is not None and theirs is not None:
        return Ruling(_same_count(mine, theirs, prediction, gold) if same_number(mine, theirs) else 0.0)
    if not ask or not is_formula(prediction):
        return Ruling(0.0)
    return _question(prediction, gold)


def _same_count(mine: Number, theirs: Number, prediction: str, gold: str) -> float:
    """Equal numbers; where they count different things, the words say how different."""
    return 1.0 if mine.unit.counts_like(theirs.unit) else f1_numbers(prediction, gold)


def _math(prediction: str, gold: str) -> Ruling:
    """A formula, or the words or the choice that a mathematical problem asks for."""
    if (same := _same_in_algebra(prediction, gold)) is not None:
        return Ruling(float(same))
    if bare(prediction) == bare(gold):
        return Ruling(1.0)
    if (alike := same_letters(prediction, gold)) is not None:
        return Ruling(float(alike))
    if is_choice(gold):
        return Ruling(float(same_choice(prediction, gold)))
    if (label := labelled(gold)) is not None:
        return _labelled(prediction, *label)
    if parse_date(gold) is not None:
        return Ruling(_score(prediction, gold, "date"))
    if words_of(gold) and not is_computable(gold):
        return Ruling(exact(unwrapped(prediction), unwrapped(gold)) if not re.search(r"\d", gold) else 0.0)
    return _question(prediction, gold)


def _same_in_algebra(prediction: str, gold: str) -> bool | None:
    """Whether two numbers are equal; None unless both are numbers. `500 g` is one if the other has the unit g, too."""
    strict = [parse_number(text, algebra=True) for text in (prediction, gold)]
    loose = [parse_number(text) for text in (prediction, gold)]
    mine, theirs = (either or other for either, other in zip(strict, loose, strict=True))
    if mine is None or theirs is None or strict == [None, None]:
        return None
    if None in strict and not (mine.unit.name and mine.unit == theirs.unit):
        return None
    return same_number(mine, theirs)


def _labelled(prediction: str, letter: str, content: str) -> Ruling:
    """The gold answer is a choice with its content: either will do, if it comes without the letter of another."""
    mine = labelled(prediction)
    if mine is not None:
        return _math(mine[1], content) if mine[0] == letter else Ruling(0.0)
    return Ruling(1.0) if same_choice(prediction, letter) else _math(prediction, content)


def _question(prediction: str, gold: str) -> Ruling:
    """Hand it on, unless rules see a difference that a parser of formulas does not: units, primes (`f'`), equations."""
    if max(len(prediction), len(gold)) > LONGEST or prediction.count("'") != gold.count("'"):
        return Ruling(0.0)
    if ("=" in prediction) != ("=" in gold) and not (names_value(prediction) and names_value(gold)):
        return Ruling(0.0)
    (mine, of_mine), (theirs, of_theirs) = without_unit(prediction), without_unit(gold)
    if of_mine.fits(of_theirs) and is_computable(mine) and is_computable(theirs):
        return Ruling(0.0, Question(latex(theirs), latex(mine)))
    return Ruling(0.0)
