"""The fourteen sets, by name."""

import difflib

from arpo.data.benchmarks.base import Benchmark
from arpo.data.benchmarks.mathematics import AIME24, AIME25, GSM8K, MATH, MATH500
from arpo.data.benchmarks.multihop import BAMBOOGLE, HOTPOTQA, MUSIQUE, WIKI2
from arpo.data.benchmarks.search import GAIA, HLE, SIMPLEQA, WEBWALKER, XBENCH
from arpo.errors import ConfigError

ALL = (
    AIME24,
    AIME25,
    MATH500,
    GSM8K,
    MATH,
    HOTPOTQA,
    WIKI2,
    MUSIQUE,
    BAMBOOGLE,
    WEBWALKER,
    GAIA,
    HLE,
    XBENCH,
    SIMPLEQA,
)
"""In the order of the tables: mathematics, multi-hop questions, deep search."""


def names_of(benchmark: Benchmark) -> tuple[str, ...]:
    """What the set is called, here and as a folder; lower case."""
    return tuple(dict.fromkeys((benchmark.name, *benchmark.folders)))


_BY_NAME = {name: benchmark for benchmark in ALL for name in names_of(benchmark)}


def names() -> tuple[str, ...]:
    """Every set's name."""
    return tuple(benchmark.name for benchmark in ALL)


def get(name: str) -> Benchmark:
    """The set of this name, or of a folder's name; case does not count. Raises ConfigError with the nearest name."""
    found = _BY_NAME.get(name.strip().lower())
    if found is not None:
        return found
    near = difflib.get_close_matches(name.lower(), _BY_NAME, 1)
    hint = f"did you mean {_BY_NAME[near[0]].name}?" if near else f"known: {', '.join(names())}"
    raise ConfigError(f"no benchmark is named {name!r}; {hint}")
