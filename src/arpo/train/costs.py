"""What engine, tools and scorer did for a step's trees: the metrics that no tree can tell.

They come from counters and the clock, so they are like timings: a step that is run again gives others. Of several
processes counts are added up, and seconds are those of the slowest.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from arpo.engine.stats import EngineStats
from arpo.tools.stats import ToolStats, together
from arpo.tree import RolloutTree


def snapshot(stats: EngineStats) -> EngineStats:
    """The counters as they are now."""
    return replace(stats)


@dataclass(frozen=True, slots=True)
class Spent:
    """What one process did for a step: its engine between two readings, its tools, its scorer; wall time in seconds of
    rollout and update."""

    engine: EngineStats
    tools: Mapping[str, ToolStats]
    scorer: Mapping[str, float]
    generating: float
    updating: float


def between(before: EngineStats, after: EngineStats) -> EngineStats:
    """What was counted between two readings."""
    return EngineStats(**{f.name: getattr(after, f.name) - getattr(before, f.name) for f in fields(EngineStats)})


def costs(spent: Sequence[Spent], trees: Sequence[RolloutTree]) -> dict[str, float]:
    """`engine/...`, `tools/...`, `reward/...` and `timing_s/...` of a step; `spent`: of each process."""
    generating, updating = max(s.generating for s in spent), max(s.updating for s in spent)
    row = _engine([s.engine for s in spent], trees, generating)
    for name in spent[0].tools:
        row |= together([s.tools[name] for s in spent]).metrics(name)
    counts: Counter[str] = Counter()
    for s in spent:
        counts.update(s.scorer)
    row |= {name: counts[name] for name in spent[0].scorer}
    return row | {"timing_s/gen": generating, "timing_s/update": updating}


def _engine(spent: Sequence[EngineStats], trees: Sequence[RolloutTree], seconds: float) -> dict[str, float]:
    """`engine/...` metrics of `trees`, sampled in `seconds` of wall time by the engines of all processes.

    `engine/computed_over_unique`: token positions that went through the model / unique tokens of the trees, 1 where
    branches and tool pauses cost no prefill. `engine/idle_share`: share of the time in which an engine computed
    nothing, waiting for the slowest process included. `engine/reused_share`: prefix tokens found computed. Left out
    where engines do not count them.
    """
    total = EngineStats(**{f.name: sum(getattr(s, f.name) for s in spent) for f in fields(EngineStats)})
    unique = sum(len(segment) for tree in trees for segment in tree.segments) + sum(t.wasted_tokens for t in trees)
    found = {"engine/requests": float(total.calls)}
    if total.computed_tokens and unique:
        found["engine/computed_over_unique"] = total.computed_tokens / unique
    if total.seconds and seconds:
        found["engine/idle_share"] = max(0.0, 1.0 - total.seconds / (seconds * len(spent)))
    if total.reused_tokens:
        found["engine/reused_share"] = total.reused_tokens / total.prefix_tokens
    return found
