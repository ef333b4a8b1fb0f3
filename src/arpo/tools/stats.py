"""What a tool did, counted as it happens, and as metrics.

The trees of a step tell what its calls were answered; these counters tell what no tree can: tries that were made
again, calls that never came to the tool, what waiting cost. They come from live objects and clocks, so a step that is
run again gives others.
"""

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from arpo.tools.base import ToolResult, ToolStatus

_KEPT = 4096
"""Latencies that are remembered, the latest."""
_KINDS = 32
"""Kinds of faults that are told apart; a tool that makes up names has the rest counted as "other"."""
_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(slots=True)
class ToolStats:
    """What one tool did since the counters were last taken.

    `cached`: answers from a cache; `retries`: tries beyond the first; `openings`: times that it was found to be down;
    `abandoned`: calls that did not end at their time limit, or when their caller was cancelled, and were given up;
    `waited`: seconds that calls waited for their turn or for the next try, in all; `in_flight`: most calls at once;
    `faults`: calls that did not succeed, by kind; `latencies`: seconds, one per call that ran, all its tries together
    and without waiting, the last few thousand.
    """

    calls: int = 0
    ok: int = 0
    errors: int = 0
    timeouts: int = 0
    infra_errors: int = 0
    cached: int = 0
    retries: int = 0
    openings: int = 0
    abandoned: int = 0
    waited: float = 0.0
    in_flight: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def count(self, result: ToolResult) -> None:
        """One more answer."""
        self.calls += 1
        self.ok += result.status is ToolStatus.OK
        self.errors += result.status is ToolStatus.TOOL_ERROR
        self.timeouts += result.status is ToolStatus.TIMEOUT
        self.infra_errors += result.status is ToolStatus.INFRA_ERROR
        self.cached += result.cached
        if result.status is not ToolStatus.OK:
            self._fault(result)

    def _fault(self, result: ToolResult) -> None:
        kind = str(result.data.get("fault", result.status))
        known = kind in self.faults or (len(self.faults) < _KINDS and _KIND.fullmatch(kind))
        self.faults[kind if known else "other"] += 1

    def metrics(self, name: str) -> dict[str, float]:
        """`tools/<name>/...`: percentiles in seconds, counts, and `faults/<kind>`."""
        latencies = np.fromiter(self.latencies, float) if self.latencies else np.zeros(1)
        numbers = {
            "latency_p50": float(np.percentile(latencies, 50)),
            "latency_p95": float(np.percentile(latencies, 95)),
            "cache_hits": float(self.cached),
            "retries": float(self.retries),
            "breaker_openings": float(self.openings),
            "abandoned": float(self.abandoned),
            "waited_s": self.waited,
            "in_flight": float(self.in_flight),
            "faults": float(self.faults.total()),
        }
        numbers |= {f"faults/{kind}": float(count) for kind, count in sorted(self.faults.items())}
        return {f"tools/{name}/{key}": value for key, value in numbers.items()}


def together(parts: Sequence[ToolStats]) -> ToolStats:
    """What one tool did in several processes; `in_flight` is the most of any of them."""
    whole = ToolStats(in_flight=max(part.in_flight for part in parts))
    for part in parts:
        for name in ("calls", "ok", "errors", "timeouts", "infra_errors", "cached", "retries", "openings", "abandoned"):
            setattr(whole, name, getattr(whole, name) + getattr(part, name))
        whole.waited += part.waited
        whole.faults.update(part.faults)
        whole.latencies.extend(part.latencies)
    return whole
