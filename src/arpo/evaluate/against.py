"""This evaluation against an earlier one: the same questions, paired.

Both folders hold what every question was worth, so the difference is taken question by question and what the questions
have in common drops out. Questions that only one of them has, or that have no verdict in one of them, are left out and
counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arpo.errors import DataError
from arpo.evaluate.compare import compare
from arpo.evaluate.figures import Questions, question_scores
from arpo.evaluate.intervals import Difference
from arpo.evaluate.ledger import SAMPLES, read_samples
from arpo.evaluate.samples import Sample


@dataclass(frozen=True)
class Against:
    """`difference`: ours minus theirs over `pairs` questions, on which they scored `theirs` and we `ours`."""

    pairs: int
    unpaired: int
    theirs: float
    ours: float
    difference: Difference

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        low, high = self.difference.low, self.difference.high
        return {
            "pairs": self.pairs,
            "unpaired": self.unpaired,
            "theirs": self.theirs,
            "ours": self.ours,
            "difference": self.difference.value,
            "ci95": [low, high],
            "significant": self.difference.significant,
        }


def against(ours: Questions, folder: Path, metric: str, seed: int = 0) -> Against | None:
    """The comparison with the set that `folder` holds; None if it holds none of it.

    Raises DataError if that was never scored by `metric`, or shares no question with ours.
    """
    theirs = _by_question(read_samples(folder))
    if not theirs:
        return None
    without = next((row for rows in theirs.values() for row in rows if metric not in row.verdicts), None)
    if without is not None:
        raise DataError(
            f"{folder / SAMPLES}: {without.task} has no verdict of the metric {metric!r} (there is: "
            f"{', '.join(without.verdicts)}); run the other evaluation again with --metric {metric}"
        )
    mine = {(rows[0].task, rows[0].key): rows for rows in ours}
    shared = [name for name in mine if name in theirs]
    first = question_scores([theirs[name] for name in shared], metric)
    second = question_scores([mine[name] for name in shared], metric)
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        raise DataError(f"{folder / SAMPLES}: no question in common that both have a verdict on, so nothing to compare")
    return Against(
        pairs=len(pairs),
        unpaired=len(mine) - len(pairs),
        theirs=float(np.mean([a for a, _ in pairs])),
        ours=float(np.mean([b for _, b in pairs])),
        difference=compare(first, second, seed=seed),
    )


def _by_question(rows: Sequence[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """The last row of every trajectory, by question."""
    last: dict[tuple[str, str], dict[int, Sample]] = {}
    for row in rows:
        last.setdefault((row.task, row.key), {})[row.number] = row
    return {name: list(found.values()) for name, found in last.items()}
