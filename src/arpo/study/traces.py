"""Entropy as a function of the distance from the start and from a tool result.

The paper's premise is that entropy rises in the first tokens after a tool result. That is a property of a model and its
tools, not a law, so it is measured here: per position, over unique tokens (one that d trajectories share counts
once), with a band that treats each question's tree as one observation: tokens of one tree are not independent.

Suffixes: G trees, P positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arpo.study.origins import START, origins
from arpo.tree import RolloutTree

POSITIONS = 50
WINDOW = 20
Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean entropy in nats at policy token 0, 1, ... after one kind of event, with its 95 % band.

    Lists of one length; they end where no trajectory goes further. `first`: mean over the tokens of the first
    `WINDOW` positions, pooled, with `first_ci95`.
    """

    name: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    count: tuple[int, ...]
    first: float
    first_ci95: tuple[float, float]


def entropy_after(trees: Sequence[RolloutTree], positions: int = POSITIONS) -> dict[str, Curve]:
    """A curve for `start` and for every tool whose result was followed by policy tokens, by name."""
    sums: dict[str, np.ndarray] = {}
    for place, tree in enumerate(trees):
        for segment, origin in zip(tree.segments, origins(tree), strict=True):
            if origin is None or origin.offset >= positions:
                continue
            table = sums.setdefault(origin.name, np.zeros((2, len(trees), positions)))
            values = segment.entropies[: positions - origin.offset]
            span = slice(origin.offset, origin.offset + len(values))
            table[0, place, span] += values
            table[1, place, span] += 1
    return {name: _curve(name, *table) for name, table in sums.items() if table[1].any()}


def scalars(curves: dict[str, Curve]) -> dict[str, float | None]:
    """The figures of summary.json: `start`, `after_search`, `after_python`; None where nothing was measured."""
    names = {"start": START, "after_search": "search", "after_python": "python"}
    return {key: curves[name].first if name in curves else None for key, name in names.items()}


def _curve(name: str, sum_GP: np.ndarray, count_GP: np.ndarray) -> Curve:
    seen = int(np.argmin(np.append(count_GP.sum(0) > 0, False)))
    mean_P, half_P = _ratio(sum_GP[:, :seen], count_GP[:, :seen])
    first_G = [part[:, :WINDOW].sum(1, keepdims=True) for part in (sum_GP, count_GP)]
    first, half = (float(value[0]) for value in _ratio(*first_G))
    return Curve(
        name,
        tuple(mean_P.tolist()),
        tuple(np.maximum(mean_P - half_P, 0).tolist()),
        tuple((mean_P + half_P).tolist()),
        tuple(count_GP.sum(0)[:seen].astype(int).tolist()),
        first,
        (max(first - half, 0.0), first + half),
    )


def _ratio(sum_GP: np.ndarray, count_GP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pooled mean `[P]` and half of its 95 % interval, clustered by tree.

    Linearised variance of a ratio estimator: Cochran 1977, "Sampling techniques", section 6.
    One tree gives no spread: a half width of 0.
    """
    total_P = count_GP.sum(0)
    mean_P = sum_GP.sum(0) / total_P
    residual_GP = sum_GP - mean_P * count_GP
    groups_P = (count_GP > 0).sum(0)
    correction_P = groups_P / np.maximum(groups_P - 1, 1)
    return mean_P, Z95 * np.sqrt(correction_P * (residual_GP**2).sum(0)) / total_P
