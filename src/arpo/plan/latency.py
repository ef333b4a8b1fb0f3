"""How long tools take: log-normal, by their median and 95th percentile, each with its source.

Measured here are the local ones. Of the web, which cannot be reached from where this was made, there are the figures
that others publish; they differ by a factor of three among providers, so give your own where you have them:
`--tools live=0.4/1.1:0.5` is a tool with median 0.4 s and 95th percentile 1.1 s that takes half of the calls.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from arpo.errors import ConfigError
from arpo.seeds import uniform

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)
_FORM = re.compile(r"([a-z0-9_-]+)(?:=([0-9.]+)(?:/([0-9.]+))?)?:([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a call: median `p50`, 95th percentile `p95`, log-normal; cut off at `limit` (a time-out)."""

    name: str
    p50: float
    p95: float
    limit: float = 60.0
    source: str = "as given"

    @property
    def sigma(self) -> float:
        """Of the logarithm."""
        return math.log(self.p95 / self.p50) / _Z95 if self.p50 else 0.0

    @property
    def mean(self) -> float:
        """Seconds; the cut is not counted."""
        return self.p50 * math.exp(self.sigma**2 / 2)

    def at(self, *place: str | int) -> float:
        """Seconds of the call at this place: a function of the place alone."""
        share = min(max(uniform(*place, "latency"), 2.0**-53), 1 - 2.0**-53)
        return min(self.p50 * math.exp(self.sigma * _NORMAL.inv_cdf(share)), self.limit)


KNOWN: Mapping[str, Latency] = {
    one.name: one
    for one in (
        Latency("index", 0.0012, 0.0035, 10, "measured: BM25 over 100,000 passages, docs/search.md"),
        Latency("cache", 0.010, 0.015, 10, "one answer of the SQLite cache, docs/search.md; p95 assumed"),
        Latency("python", 0.057, 0.085, 10, "measured: two runs at once on two cores, docs/sandbox.md"),
        Latency("live", 0.8, 2.2, 10, "published by scavio.dev (2026) of Tavily; Serper 0.4/1.1, SerpAPI 1.2/3.5"),
        Latency("browser", 1.5, 6.0, 20, "assumed: one page fetched politely, its summary not included"),
    )
}
"""Tools by name."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Which share of the calls goes to which tool. Shares add up to 1."""

    parts: tuple[tuple[Latency, float], ...]

    @property
    def mean(self) -> float:
        """Mean seconds of a call."""
        return sum(share * one.mean for one, share in self.parts)

    def pick(self, *place: str | int) -> Latency:
        """The tool of the call at this place."""
        draw = uniform(*place, "tool")
        for one, share in self.parts:
            draw -= share
            if draw < 0:
                return one
        return self.parts[-1][0]

    def slower(self, factor: float) -> "Mix":
        """The same calls, each `factor` times as long."""
        return Mix(tuple((_scaled(one, factor), share) for one, share in self.parts))


def _scaled(one: Latency, factor: float) -> Latency:
    return Latency(one.name, one.p50 * factor, one.p95 * factor, one.limit * max(factor, 1.0), one.source)


DEFAULT = "cache:0.3,live:0.3,browser:0.15,python:0.25"
"""A deep-search mix in which every second search is answered from the cache."""


def parse_mix(text: str) -> Mix:
    """`name:share` of a known tool or `name=p50/p95:share`, comma-separated. Raises ConfigError."""
    parts = [_part(one.strip()) for one in text.split(",") if one.strip()]
    total = sum(share for _, share in parts)
    if not parts or not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ConfigError(f"--tools {text}: the shares add up to {total:g}, not to 1")
    return Mix(tuple(parts))


def _part(text: str) -> tuple[Latency, float]:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"--tools {text}: write name:share, or name=median/p95:share in seconds")
    name, p50, p95, share = match[1], match[2], match[3], float(match[4])
    if p50 is None:
        if name not in KNOWN:
            raise ConfigError(f"--tools {name}: known are {', '.join(KNOWN)}; or give name=median/p95:share")
        return KNOWN[name], share
    low, high = float(p50), float(p95 or p50)
    if high < low:
        raise ConfigError(f"--tools {text}: the 95th percentile is below the median")
    return Latency(name, low, high), share


def names(mix: Mix) -> Sequence[str]:
    """For people: `live 30 % (0.8/2.2 s)`."""
    return [f"{one.name} {share:.0%} ({one.p50:g}/{one.p95:g} s)" for one, share in mix.parts]
