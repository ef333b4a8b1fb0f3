"""Learning curves to a comparison at equal cost.

A method's run is a curve: held-out accuracy after so many sampled tokens and so many executed tool calls. All runs are
read off at the same cost, the smallest total that any of them reached, between two evaluations on the straight line.
The unit of all intervals is the training run: five seeds are five numbers, however many questions each was asked.
Methods are compared seed by seed, since a seed fixes the order of the tasks and the questions asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from arpo.evaluate.intervals import Difference, Interval

Axis = Literal["tokens", "calls"]
AXES: tuple[Axis, ...] = ("tokens", "calls")


@dataclass(frozen=True)
class Curve:
    """One run: cost so far and accuracy `[E]` at each evaluation, the starting point (cost 0) first."""

    tokens: tuple[float, ...]
    calls: tuple[float, ...]
    accuracy: tuple[float, ...]

    def at(self, axis: Axis, cost: float) -> float:
        """Accuracy at a cost within the curve, linear between two evaluations."""
        return float(np.interp(cost, getattr(self, axis), self.accuracy))

    def area(self, axis: Axis, cost: float) -> float:
        """Mean accuracy from the start up to a cost: how fast, not only how far."""
        xs = np.array([0.0, *(x for x in getattr(self, axis) if 0 < x < cost), cost])
        return float(np.trapezoid([self.at(axis, x) for x in xs], xs) / cost)


@dataclass(frozen=True)
class Against:
    """A method minus the reference at equal cost: mean paired difference, its 95 % interval, p of the paired t-test
    and the same after Holm's correction for the number of methods compared."""

    difference: Difference
    p: float
    p_holm: float


@dataclass(frozen=True)
class Standing:
    """A method at one cost: accuracy of each seed, mean, 95 % interval, mean along the way, against the reference."""

    accuracies: tuple[float, ...]
    mean: float
    ci95: Interval
    area: float
    against: Against | None


def equal_cost(curves: Mapping[str, Sequence[Curve]], axis: Axis) -> float:
    """The largest cost that every run reached."""
    return min(getattr(curve, axis)[-1] for runs in curves.values() for curve in runs)


def standings(curves: Mapping[str, Sequence[Curve]], axis: Axis) -> dict[str, Standing]:
    """Every method at the equal cost of `axis`; the first method is the reference."""
    cost = equal_cost(curves, axis)
    values = {name: np.array([curve.at(axis, cost) for curve in runs]) for name, runs in curves.items()}
    reference, *others = values
    p = [_paired_p(values[reference], values[name]) for name in others]
    corrected = dict(zip(others, zip(p, holm(p), strict=True), strict=True))
    return {
        name: Standing(
            accuracies=tuple(value.tolist()),
            mean=float(value.mean()),
            ci95=mean_interval(value),
            area=float(np.mean([curve.area(axis, cost) for curve in curves[name]])),
            against=None if name == reference else _against(values[reference], value, *corrected[name]),
        )
        for name, value in values.items()
    }


def _against(reference: np.ndarray, values: np.ndarray, p: float, p_holm: float) -> Against:
    difference = values - reference
    return Against(Difference(float(difference.mean()), *mean_interval(difference)), p, p_holm)


def mean_interval(values_S: np.ndarray, confidence: float = 0.95) -> Interval:
    """Student's interval of a mean over `[S]` seeds. Source: Student 1908, "The probable error of a mean"."""
    half = stats.t.ppf((1 + confidence) / 2, len(values_S) - 1) * values_S.std(ddof=1) / np.sqrt(len(values_S))
    return Interval(float(values_S.mean() - half), float(values_S.mean() + half))


def _paired_p(first_S: np.ndarray, second_S: np.ndarray) -> float:
    """Two-sided paired t-test; 1 where the seeds do not differ at all."""
    difference = second_S - first_S
    if not difference.any():
        return 1.0
    return 0.0 if difference.std() == 0 else float(stats.ttest_rel(second_S, first_S).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for their number. Source: Holm 1979, "A simple sequentially rejective multiple test procedure"."""
    order = np.argsort(p_values)
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def table(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """All figures as plain values for JSON."""
    return {
        axis: {
            "cost": equal_cost(curves, axis),
            "methods": {name: asdict(standing) for name, standing in standings(curves, axis).items()},
        }
        for axis in AXES
    }
