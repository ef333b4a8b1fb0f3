r"""Is an answer right? Comparisons from 0 to 1, none of which ever evaluates text.

`score_answer` compares one answer with one gold answer, `best_score` with several, `score_many` many pairs at once. The
mode says by whose rules; only "hybrid" looks at the kind of the answer. Answers may be bare or texts with boxes, of
which the last one counts; a box that cannot be read, or holds nothing, is no answer.

All of it blocks, for up to the deadline of `arpo.reward.mathematics` where an answer is a formula, and may be called
from any thread.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from arpo.protocol.boxed import last_boxed
from arpo.reward import mathematics
from arpo.reward.folding import undelimited
from arpo.reward.gaia import score_gaia
from arpo.reward.hybrid import Question, Ruling, rule
from arpo.reward.paper import paper_score
from arpo.reward.words import exact, f1, f1_cjk
from arpo.task import AnswerKind

Mode = Literal["hybrid", "paper", "f1", "em", "math", "f1_cjk", "gaia"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")


def score_answer(prediction: str | None, gold: str, *, mode: Mode = "hybrid", kind: AnswerKind | None = None) -> float:
    """How right `prediction` is, 0 to 1. Nothing, or only blanks, is worth 0 whatever the gold answer says.

    `kind`: what sort of answer the task expects; None or "auto": the gold answer decides. Never raises for what an
    answer says; VerifierError if formulas have to be compared and no process for that can be started.
    """
    return best_score(prediction, [gold], mode=mode, kind=kind)


def best_score(
    prediction: str | None, golds: Iterable[str], *, mode: Mode = "hybrid", kind: AnswerKind | None = None
) -> float:
    """The best of `score_answer` over the gold answers; 0 if there are none."""
    rulings = [_ruling(prediction, gold, mode, kind) for gold in golds]
    best = max((ruling.score for ruling in rulings), default=0.0)
    for ruling in rulings:
        if best < 1 and ruling.question is not None and mathematics.equal(ruling.question):
            best = 1.0
    return best


def score_many(
    pairs: Sequence[tuple[str | None, str]],
    *,
    mode: Mode = "hybrid",
    kinds: Sequence[AnswerKind | None] | None = None,
) -> list[float]:
    """`score_answer` of every pair (prediction, gold), formulas compared in as many processes as the settings allow.

    `kinds`: one per pair.
    """
    sorts = kinds if kinds is not None else [None] * len(pairs)
    rulings = [_ruling(*pair, mode, kind) for pair, kind in zip(pairs, sorts, strict=True)]
    asked = [ruling.question for ruling in rulings if ruling.question is not None]
    answers = iter(mathematics.equal_many(asked))
    return [1.0 if ruling.question is not None and next(answers) else ruling.score for ruling in rulings]


def _ruling(prediction: str | None, gold: str, mode: Mode, kind: AnswerKind | None) -> Ruling:
    if prediction is None or not prediction.strip():
        return Ruling(0.0)
    if mode == "paper":
        return Ruling(paper_score(prediction, gold))
    opened, truth = opened_box(prediction), opened_box(gold) or gold
    if not opened or not truth.strip():
        return Ruling(0.0)
    if mode == "hybrid":
        return rule(opened, truth, kind or "auto")
    if mode == "math":
        return Ruling(0.0, Question(undelimited(truth), undelimited(opened), stock=True))
    return Ruling(_RULES[mode](opened, truth))


_RULES = {"f1": f1, "em": exact, "f1_cjk": f1_cjk, "gaia": score_gaia}


def opened_box(text: str) -> str | None:
    """What the last box in `text` holds, or all of it if there is no box; None if that box cannot be read."""
    return last_boxed(text) if _BOX.search(text) else text.strip()
