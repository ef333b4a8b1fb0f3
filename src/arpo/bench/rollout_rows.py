"""One line of the benchmark of rollouts: from the runs of two arms to ratios."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arpo.bench.rollout_arms import Run


@dataclass(frozen=True, slots=True)
class Pair:
    """One round: our run and the other arm's."""

    ours: Run
    other: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """Ours against one other arm, on one model with one kind of tools. A ratio above 1 says that ours is faster.

    Figures without suffix are ours, those with `_versus` the other arm's; None: not measured, or not known of that arm.
    Medians over the rounds.
    """

    model: str
    tools: str
    versus: str
    ratio: float
    """Of trajectories per second on the clock."""
    ratio_least: float
    ratio_most: float
    spread: float
    """(largest - smallest ratio of a round) / median."""
    ratio_tokens: float
    """Of sampled tokens per second: what to read where the arms sample other trajectories."""
    ratio_cpu: float
    """Of trajectories per CPU second of the process: what to read of tools without latency on a machine that others use
    too."""
    idle_share: float | None
    """Share of the time in which the engine computes nothing."""
    idle_share_versus: float | None
    idle_share_full: float | None
    """The same in a longer run, while `in_flight` prompts were in flight."""
    entropy_overhead: float | None
    """Seconds of generation with exact entropy / without, on the same tokens, less 1."""
    computed_over_unique: float | None
    """Token positions that went through the model / unique tokens of the trees."""
    computed_over_unique_versus: float | None
    trajectories_per_s: float
    trajectories_per_s_versus: float
    tokens_per_s: float
    """Sampled tokens."""
    tokens_per_s_versus: float
    seconds: float
    seconds_versus: float
    seconds_rollout: float | None
    seconds_rollout_versus: float | None
    """Where a step of training was timed: its rollout alone."""
    tokens_per_trajectory: float
    """Sampled tokens, shared ones once, per trajectory."""
    tokens_per_trajectory_versus: float
    calls_requested: float
    calls_executed: float
    calls_requested_versus: float
    calls_executed_versus: float
    bytes_peak: int | None
    """Memory beyond what was held before the arm's first run."""
    bytes_peak_versus: int | None
    prompts: int
    group: str
    in_flight: int | None
    max_tokens: int
    rounds: int
    threads: int
    torch: str
    device: str
    dtype: str


def rollout_row(pairs: Sequence[Pair], **names: Any) -> RolloutRow:
    """The row of these rounds. `names`: all that is not a figure of the runs."""
    optional: dict[str, Any] = dict.fromkeys([name for name in _OPTIONAL if name not in names])
    ratios = [_speed(one.ours) / _speed(one.other) for one in pairs]
    return RolloutRow(
        **optional,
        **names,
        ratio=statistics.median(ratios),
        ratio_least=min(ratios),
        ratio_most=max(ratios),
        spread=(max(ratios) - min(ratios)) / statistics.median(ratios),
        ratio_tokens=statistics.median(
            one.ours.sampled / one.ours.wall / (one.other.sampled / one.other.wall) for one in pairs
        ),
        ratio_cpu=statistics.median(
            one.ours.trajectories / one.ours.cpu / (one.other.trajectories / one.other.cpu) for one in pairs
        ),
        **_figures([one.ours for one in pairs], ""),
        **_figures([one.other for one in pairs], "_versus"),
        rounds=len(pairs),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )


_OPTIONAL = (
    *("idle_share_full", "in_flight", "entropy_overhead", "bytes_peak", "bytes_peak_versus"),
    *("seconds_rollout", "seconds_rollout_versus"),
)


def _speed(run: Run) -> float:
    return run.trajectories / run.wall


def _figures(runs: Sequence[Run], suffix: str) -> dict[str, Any]:
    def median(of: Callable[[Run], float]) -> float:
        return statistics.median(map(of, runs))

    known = all(run.computed for run in runs)
    figures = {
        "idle_share": median(lambda run: run.idle) if all(run.busy for run in runs) else None,
        "computed_over_unique": median(lambda run: run.computed / run.unique) if known else None,
        "trajectories_per_s": median(_speed),
        "tokens_per_s": median(lambda run: run.sampled / run.wall),
        "seconds": median(lambda run: run.wall),
        "tokens_per_trajectory": median(lambda run: run.sampled / run.trajectories),
        "calls_requested": median(lambda run: run.requested),
        "calls_executed": median(lambda run: run.executed),
    }
    return {f"{name}{suffix}": value for name, value in figures.items()}
