"""What the engine did for a step's trees: the metrics that no tree can tell.

They come from the engine's counters and the clock, so they are like timings: a step that is run again gives others.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from arpo.engine.stats import EngineStats
from arpo.tree import RolloutTree


def snapshot(stats: EngineStats) -> EngineStats:
    """The counters as they are now."""
    return replace(stats)


def engine_costs(
    before: EngineStats, after: EngineStats, trees: Sequence[RolloutTree], seconds: float
) -> dict[str, float]:
    """`engine/...` metrics of `trees`, sampled in `seconds` of wall time between the two readings.

    `engine/computed_over_unique`: token positions that went through the model / unique tokens of the trees, 1 where
    branches and tool pauses cost no prefill. `engine/idle_share`: share of the time in which the engine computed
    nothing. `engine/reused_share`: prefix tokens found computed. Left out where the engine does not count them.
    """
    spent = {f.name: getattr(after, f.name) - getattr(before, f.name) for f in fields(EngineStats)}
    unique = sum(len(segment) for tree in trees for segment in tree.segments) + sum(t.wasted_tokens for t in trees)
    costs = {"engine/requests": float(spent["calls"])}
    if spent["computed_tokens"] and unique:
        costs["engine/computed_over_unique"] = spent["computed_tokens"] / unique
    if spent["seconds"] and seconds:
        costs["engine/idle_share"] = max(0.0, 1.0 - spent["seconds"] / seconds)
    if spent["reused_tokens"]:
        costs["engine/reused_share"] = spent["reused_tokens"] / spent["prefix_tokens"]
    return costs
