"""How far a measured share may be from the true one.

Every figure that this project reports has an interval, and two policies are compared by the interval of their
*difference*, not by looking whether two intervals overlap (which is conservative). Questions are the unit: the
bootstrap draws whole questions, because trajectories of one question are not independent.

Suffixes: Q questions, B bootstrap draws.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

DRAWS = 2000
"""Bootstrap draws: the ends of a 95 % interval then move by under a tenth of its width between seeds."""


class Interval(NamedTuple):
    """An interval, both ends included."""

    low: float
    high: float


class Difference(NamedTuple):
    """`value` = mean of the second minus mean of the first, with its interval."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def wilson(k: float, n: int, confidence: float = 0.95) -> Interval:
    """Score interval for k successes in n trials; never leaves [0, 1] and is not empty at k = 0 or k = n.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22;
    recommended by Brown, Cai, DasGupta 2001, "Interval estimation for a binomial proportion", Statistical Science 16.
    Raises ValueError without trials.
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} successes in {n} trials have no interval")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p, shrink = k / n, 1 + z * z / n
    centre = (p + z * z / (2 * n)) / shrink
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / shrink
    low = 0.0 if k == 0 else max(0.0, centre - half)
    return Interval(low, 1.0 if k == n else min(1.0, centre + half))


def bootstrap(values_Q: Sequence[float], *, seed: int, confidence: float = 0.95, draws: int = DRAWS) -> Interval:
    """Percentile interval of the mean over questions, each value being one question's mean.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7. One question gives
    an interval of no width. Raises ValueError without values.
    """
    means_B = _resampled_means(np.asarray(values_Q, np.float64), seed, draws)
    low, high = np.quantile(means_B, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def paired_difference(
    first_Q: Sequence[float], second_Q: Sequence[float], *, seed: int, confidence: float = 0.95, draws: int = DRAWS
) -> Difference:
    """Mean of second - first over the *same* questions in the same order: what the questions share drops out.

    The interval is the bootstrap of the per-question differences (Efron 1979). Raises ValueError if lengths differ.
    """
    first, second = np.asarray(first_Q, np.float64), np.asarray(second_Q, np.float64)
    if first.shape != second.shape:
        raise ValueError(f"paired values must answer the same questions, not {len(first)} and {len(second)}")
    delta_Q = second - first
    interval = bootstrap(delta_Q.tolist(), seed=seed, confidence=confidence, draws=draws)
    return Difference(float(delta_Q.mean()), *interval)


def share_difference(k1: float, n1: int, k2: float, n2: int, confidence: float = 0.95) -> Difference:
    """k2/n2 - k1/n1 for independent samples, from the two Wilson intervals.

    Source: Newcombe 1998, "Interval estimation for the difference between independent proportions: comparison of
    eleven methods", Statistics in Medicine 17, method 10.
    """
    p1, p2 = k1 / n1, k2 / n2
    low1, high1 = wilson(k1, n1, confidence)
    low2, high2 = wilson(k2, n2, confidence)
    value = p2 - p1
    low = value - sqrt((p2 - low2) ** 2 + (high1 - p1) ** 2)
    high = value + sqrt((high2 - p2) ** 2 + (p1 - low1) ** 2)
    return Difference(value, low, high)


def _resampled_means(values_Q: np.ndarray, seed: int, draws: int) -> np.ndarray:
    """Means of `draws` resamples `[B]`; in slices, so that memory stays small with many questions."""
    if not len(values_Q):
        raise ValueError("no questions, no interval")
    rng, size = np.random.default_rng(seed), len(values_Q)
    rows = max(1, 2_000_000 // size)
    slices = [min(rows, draws - start) for start in range(0, draws, rows)]
    return np.concatenate([values_Q[rng.integers(0, size, (count, size))].mean(1) for count in slices])
