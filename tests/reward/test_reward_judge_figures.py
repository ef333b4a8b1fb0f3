"""Calibration, SimpleQA's shares and agreement, against values worked out by hand."""

from math import sqrt

import pytest

from arpo.reward.judge.figures import agreement, calibration_error, simpleqa_figures
from arpo.reward.verdict import Verdict


def verdict(score: float | None, confidence: float | None = None, grade: str = "") -> Verdict:
    return Verdict(score, grade, confidence)


def test_one_bin_compares_means():
    verdicts = [verdict(1, 90), verdict(0, 70), verdict(1, 50), verdict(0, 30)]
    assert calibration_error(verdicts) == pytest.approx(abs(0.6 - 0.5))


def test_bins_count_by_their_size_and_the_last_takes_the_rest():
    """Bins of two, sorted by confidence: (10, 20), (60, 70), then (80, 90, 100)."""
    verdicts = [verdict(1, 100), verdict(0, 10), verdict(1, 60), verdict(1, 20)]
    verdicts += [verdict(1, 70), verdict(0, 80), verdict(1, 90)]
    gaps = [(2, 0.15 - 0.5), (2, 0.65 - 1.0), (3, 0.9 - 2 / 3)]
    squares = [count / 7 * gap**2 for count, gap in gaps]
    assert calibration_error(verdicts, size=2) == pytest.approx(sqrt(sum(squares)))
    assert calibration_error(verdicts, size=2, published=True) == pytest.approx(sqrt(sum(squares[:2])))


def test_confidence_that_is_not_stated():
    verdicts = [verdict(1, 50), verdict(0), verdict(None, 10)]
    assert calibration_error(verdicts) == pytest.approx(0.75 - 0.5)
    assert calibration_error(verdicts, missing=None) == pytest.approx(0.5)
    assert calibration_error([verdict(1)], missing=None) is None
    assert calibration_error([]) is None
    assert calibration_error([verdict(0, 100)], published=True) == 0.0


def test_simpleqa():
    grades = ["correct"] * 3 + ["incorrect"] + ["not_attempted"] * 4
    found = simpleqa_figures([verdict(float(grade == "correct"), grade=grade) for grade in grades] + [verdict(None)])
    assert (found.correct, found.incorrect, found.not_attempted) == (3 / 8, 1 / 8, 1 / 2)
    assert found.correct_given_attempted == 3 / 4
    assert found.f_score == pytest.approx(2 * (3 / 8) * (3 / 4) / (3 / 8 + 3 / 4))
    assert simpleqa_figures([verdict(1.0), verdict(0.0)]).correct == 0.5
    assert simpleqa_figures([verdict(0.0, grade="not_attempted")]).f_score == 0.0
    assert simpleqa_figures([verdict(None)]) is None


def test_agreement():
    labels = [True] * 25 + [False] * 25
    verdicts = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    found = agreement(labels, verdicts)
    assert (found.n, found.agreement, found.kappa) == (50, 0.7, pytest.approx(0.4))
    assert found.confusion == {(True, True): 20, (True, False): 5, (False, True): 10, (False, False): 15}
    assert agreement([True], [True]).kappa is None
    with pytest.raises(ValueError, match="no judgements"):
        agreement([], [])
