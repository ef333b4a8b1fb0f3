"""What a report is made of: plain values, so that a report can be written by any command and tested without a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from arpo.evaluate.intervals import Interval
from arpo.evaluate.result import Accuracy, EvalResult
from arpo.study.branches import BranchStatistics
from arpo.study.calls import CallCounts
from arpo.study.traces import Curve
from arpo.tree import RolloutTree

Decode = Callable[[Sequence[int]], str]

LABELS = {
    "cold_start": "Cold start",
    "grpo": "GRPO",
    "arpo": "ARPO",
    "clean_cold_start": "Clean cold start",
}
"""Policies that a report can show, in the order in which it shows them."""
TRAINED = ("grpo", "arpo")


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out accuracy over `n` questions after a training cost: tokens sampled, calls executed, seconds of RL."""

    accuracy: float
    ci95: Interval
    n: int
    step: int = 0
    generated_tokens: int = 0
    tool_calls: int = 0
    seconds: float = 0.0

    @classmethod
    def of(
        cls, result: EvalResult, *, step: int = 0, generated_tokens: int = 0, tool_calls: int = 0, seconds: float = 0.0
    ) -> "Point":
        """The point of one evaluation; the costs are those of training so far, not of the evaluation."""
        return cls(result.accuracy, result.ci95, result.n, step, generated_tokens, tool_calls, seconds)


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean training reward of one step, at the tokens sampled by its end."""

    step: int
    generated_tokens: int
    reward: float


@dataclass(frozen=True)
class MethodRun:
    """One policy of a report. `points` in order of cost, the last one final; a cold start has one, at cost 0.

    `scores`: of the final evaluation by question, in one order for all policies. `entropy`: curves of its trajectories.
    """

    points: tuple[Point, ...]
    scores: tuple[float | None, ...] = ()
    per_family: Mapping[str, Accuracy] = field(default_factory=dict)
    rewards: tuple[RewardPoint, ...] = ()
    entropy: Mapping[str, Curve] = field(default_factory=dict)
    branches: BranchStatistics | None = None
    calls: CallCounts | None = None
    sharing: float | None = None
    """Tokens of the trajectories that were trained on / tokens that the updates computed, over the whole run."""
    update_seconds: float | None = None

    @property
    def final(self) -> Point:
        """The last held-out evaluation."""
        return self.points[-1]


@dataclass(frozen=True)
class Example:
    """A scored tree to show, with what turns its tokens into text and a line on why it is shown."""

    tree: RolloutTree
    decode: Decode
    caption: str


@dataclass(frozen=True)
class ReportData:
    """A whole report. `runs`: by a name of `LABELS`, at least one. `facts`: versions, seeds, hardware, ... as text.

    `cold_start`: what the cold start was trained on, in a sentence or two. `config`: the resolved configuration, or the
    part of it that matters. `seeds`: training runs behind each curve.
    """

    title: str
    runs: Mapping[str, MethodRun]
    examples: tuple[Example, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    cold_start: str = ""
    config: str = ""
    seeds: int = 1

    def __post_init__(self) -> None:
        unknown = set(self.runs) - set(LABELS)
        if unknown or not self.runs or not all(run.points for run in self.runs.values()):
            raise ValueError(f"a report needs evaluated runs named {', '.join(LABELS)}; got {', '.join(self.runs)}")

    @property
    def shown(self) -> dict[str, MethodRun]:
        """The runs in the order of `LABELS`."""
        return {name: self.runs[name] for name in LABELS if name in self.runs}
