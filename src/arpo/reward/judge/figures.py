"""Figures over many verdicts: how calibrated stated confidences are, SimpleQA's own, and how far two judges agree.

Suffix: N verdicts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from arpo.reward.verdict import Verdict

BIN = 100
"""Verdicts in a bin of the calibration error, as published."""


def calibration_error(
    verdicts: Sequence[Verdict], *, missing: float | None = 100.0, published: bool = False, size: int = BIN
) -> float | None:
    """Root mean square difference between confidence and accuracy, 0 to 1, over bins of equal size; None without any.

    Verdicts are sorted by confidence and cut into bins of `size`, the last of which also takes the rest; a bin counts
    by its verdicts. `missing`: confidence in percent of an answer that states none (100, as published); None: leave it
    out. `published`: leave the last bin out, as the loop of the published script does, and so its figures; with less
    than two bins that gives 0. Verdicts without a score are left out.

    Source: Hendrycks, Mazeika, Dietterich 2019, "Deep Anomaly Detection with Outlier Exposure"; used by Phan et al.
    2025, "Humanity's Last Exam".
    """
    known = [(v.confidence if v.confidence is not None else missing, v.score) for v in verdicts if v.score is not None]
    pairs = [(confidence / 100, score) for confidence, score in known if confidence is not None]
    if not pairs:
        return None
    confidence_N, score_N = np.array(sorted(pairs, key=lambda pair: pair[0]), np.float64).T
    count = max(len(pairs) // size, 1)
    ends = [size * place for place in range(1, count)] + [len(pairs)]
    total = 0.0
    for start, end in zip([0, *ends], ends[: count - published], strict=False):
        gap = confidence_N[start:end].mean() - score_N[start:end].mean()
        total += (end - start) / len(pairs) * gap * gap
    return sqrt(total)


@dataclass(frozen=True, slots=True)
class SimpleQAFigures:
    """Shares of all graded answers, of those attempted, and the harmonic mean of the two.

    Source: Wei et al. 2024, "Measuring short-form factuality in large language models", section 2.
    """

    correct: float
    incorrect: float
    not_attempted: float
    correct_given_attempted: float
    f_score: float


def simpleqa_figures(verdicts: Sequence[Verdict]) -> SimpleQAFigures | None:
    """Of the verdicts that have a score; None if none has. By rule, right is correct and anything else incorrect."""
    grades = Counter(_grade(verdict) for verdict in verdicts if verdict.score is not None)
    n = sum(grades.values())
    if not n:
        return None
    correct, missed = grades["correct"] / n, grades["not_attempted"] / n
    given = correct / (1 - missed) if missed < 1 else 0.0
    f_score = 2 * correct * given / (correct + given) if correct else 0.0
    return SimpleQAFigures(correct, grades["incorrect"] / n, missed, given, f_score)


def _grade(verdict: Verdict) -> str:
    return verdict.grade or ("correct" if verdict.score == 1.0 else "incorrect")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far verdicts agree with labels. `n`: pairs; `agreement`: share that is equal; `kappa`: Cohen's, None where
    chance alone would agree always; `confusion`: counts by (label, verdict).

    Source: Cohen 1960, "A coefficient of agreement for nominal scales".
    """

    n: int
    agreement: float
    kappa: float | None
    confusion: Mapping[tuple[bool, bool], int]


def agreement(labels: Sequence[bool], verdicts: Sequence[bool]) -> Agreement:
    """Of two judgements of the same answers in the same order. ValueError without any."""
    pairs = Counter(zip(labels, verdicts, strict=True))
    n = sum(pairs.values())
    if not n:
        raise ValueError("no judgements, no agreement")
    observed = (pairs[True, True] + pairs[False, False]) / n
    chance = sum(
        (pairs[side, True] + pairs[side, False]) * (pairs[True, side] + pairs[False, side]) for side in (True, False)
    ) / (n * n)
    kappa = (observed - chance) / (1 - chance) if chance < 1 else None
    confusion = {(label, verdict): pairs[label, verdict] for label in (True, False) for verdict in (True, False)}
    return Agreement(n, observed, kappa, confusion)
