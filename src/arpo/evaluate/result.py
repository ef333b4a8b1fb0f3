"""What an evaluation found: accuracy with its interval, by family, and what it cost.

What counts is the `accuracy` part of an outcome: bonuses and penalties of the training reward do not, and a malformed
trajectory has answered nothing. Trajectories that the infrastructure lost are left out and counted, never scored as
wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arpo.errors import ArpoError
from arpo.evaluate.intervals import Interval, bootstrap, wilson
from arpo.task import Task
from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A mean over `n` questions with its 95 % interval."""

    accuracy: float
    ci95: Interval
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"accuracy": self.accuracy, "ci95": list(self.ci95), "n": self.n}


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found.

    `scores`: mean accuracy of each question in task order, None where the infrastructure failed. `n`: questions with
    a score; `failed`: trajectories without one. `generated_tokens`, `tool_calls`, `seconds`: what the evaluation cost.
    """

    accuracy: float
    ci95: Interval
    n: int
    failed: int
    per_family: dict[str, Accuracy]
    generated_tokens: int
    tool_calls: int
    seconds: float
    rewards: tuple[float | None, ...]
    scores: tuple[float | None, ...]
    trees: tuple[RolloutTree, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The figures of summary.json."""
        return {
            "heldout_accuracy": self.accuracy,
            "ci95": list(self.ci95),
            "n": self.n,
            "failed": self.failed,
            "per_family": {name: family.to_dict() for name, family in self.per_family.items()},
            "generated_tokens": self.generated_tokens,
            "tool_calls": self.tool_calls,
            "seconds": self.seconds,
        }

    def metrics(self) -> dict[str, float]:
        """The same as flat numbers for a metrics row."""
        row = {
            "heldout/accuracy": self.accuracy,
            "heldout/ci_low": self.ci95.low,
            "heldout/ci_high": self.ci95.high,
            "heldout/n": float(self.n),
            "heldout/seconds": self.seconds,
        }
        return row | {f"heldout/{name}/accuracy": family.accuracy for name, family in self.per_family.items()}


def summarise(tasks: Sequence[Task], trees: Sequence[RolloutTree], seconds: float, seed: int = 0) -> EvalResult:
    """The figures of scored trees, one per task. Raises ArpoError if none has a score."""
    scores = [_score(tree) for tree in trees]
    families: dict[str, list[float]] = {}
    for task, value in zip(tasks, scores, strict=True):
        if value is not None:
            families.setdefault(task.provenance.get("family", "all"), []).append(value)
    known = [value for value in scores if value is not None]
    if not known:
        raise ArpoError(
            f"none of {len(tasks)} evaluated questions could be scored: every trajectory was lost to the "
            "infrastructure; see the tools' errors"
        )
    whole = accuracy(known, seed)
    rewards = [reward for tree in trees for reward in tree.rewards]
    return EvalResult(
        accuracy=whole.accuracy,
        ci95=whole.ci95,
        n=whole.n,
        failed=sum(reward is None for reward in rewards),
        per_family={name: accuracy(values, seed) for name, values in sorted(families.items())},
        generated_tokens=sum(tree.generated_tokens for tree in trees),
        tool_calls=sum(tree.tool_calls for tree in trees),
        seconds=seconds,
        rewards=tuple(rewards),
        scores=tuple(scores),
        trees=tuple(trees),
    )


def accuracy(scores_Q: Sequence[float], seed: int = 0) -> Accuracy:
    """Mean over questions; Wilson's interval if every question is right or wrong, else the bootstrap's."""
    mean, n = float(np.mean(scores_Q)), len(scores_Q)
    binary = all(value in (0.0, 1.0) for value in scores_Q)
    return Accuracy(mean, wilson(sum(scores_Q), n) if binary else bootstrap(scores_Q, seed=seed), n)


def _score(tree: RolloutTree) -> float | None:
    """Mean accuracy of the trajectories that have a reward."""
    values = [outcome.parts["accuracy"] for outcome in tree.outcomes if outcome.reward is not None]
    return float(np.mean(values)) if values else None
