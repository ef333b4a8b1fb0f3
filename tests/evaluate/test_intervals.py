"""Intervals: known values, edges, coverage, and that pairing helps."""

import numpy as np
import pytest

from arpo.evaluate.intervals import Difference, bootstrap, paired_difference, share_difference, wilson


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17, table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(k, n, low, high):
    assert wilson(k, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_is_symmetric_and_stays_inside():
    assert wilson(20, 20) == pytest.approx((1 - wilson(0, 20).high, 1.0))
    assert wilson(3, 10, confidence=0.99).low < wilson(3, 10).low


@pytest.mark.parametrize(("k", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_what_is_no_share(k, n):
    with pytest.raises(ValueError, match="have no interval"):
        wilson(k, n)


def test_bootstrap_agrees_with_the_normal_interval_and_is_seeded():
    values = np.random.default_rng(0).normal(0.3, 1.0, 400).tolist()
    interval = bootstrap(values, seed=1)
    half = 1.96 * np.std(values) / 20
    assert interval.low == pytest.approx(np.mean(values) - half, abs=0.02)
    assert interval.high == pytest.approx(np.mean(values) + half, abs=0.02)
    assert bootstrap(values, seed=1) == interval
    assert bootstrap(values, seed=2) != interval


def test_bootstrap_in_slices_is_whole():
    values = np.arange(50.0)
    wide = bootstrap(np.repeat(values, 100).tolist(), seed=0, draws=1000)
    assert wide.low < values.mean() < wide.high
    assert bootstrap([0.5], seed=0) == (0.5, 0.5)
    with pytest.raises(ValueError, match="no questions"):
        bootstrap([], seed=0)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for i in range(200):
        low, high = bootstrap(rng.random(60).tolist(), seed=i, draws=500)
        hits += low <= 0.5 <= high
    assert 180 <= hits <= 199


def test_pairing_by_question_is_sharper_than_two_independent_samples():
    rng = np.random.default_rng(0)
    hard = rng.random(500)
    first = (hard < 0.6).astype(float)
    second = np.where(rng.random(500) < 0.06, 1.0, first)
    paired = paired_difference(first.tolist(), second.tolist(), seed=0)
    loose = share_difference(first.sum(), 500, second.sum(), 500)
    assert paired.value == pytest.approx(loose.value) == pytest.approx(second.mean() - first.mean())
    assert paired.significant
    assert not loose.significant
    with pytest.raises(ValueError, match="same questions"):
        paired_difference([1.0], [1.0, 0.0], seed=0)


def test_difference_of_independent_shares_gives_the_published_interval():
    # Newcombe 1998, "Interval estimation for the difference", table II, case a: 56/70 against 48/80, method 10.
    found = share_difference(48, 80, 56, 70)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize(("low", "high", "expected"), [(0.01, 0.2, True), (-0.2, -0.01, True), (-0.01, 0.2, False)])
def test_significant_means_zero_is_outside(low, high, expected):
    assert Difference((low + high) / 2, low, high).significant is expected
