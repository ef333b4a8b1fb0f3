"""Which question sets a command measures, and by which metrics: from names to tasks.

What could not work is refused here, before a model is loaded: an unknown set or agent, a missing file, a metric that
needs a judge and has none. A judge is never replaced in silence: another rule would give figures that look like the
ones asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.config.schema import Config
from arpo.data.benchmarks import files, registry
from arpo.data.benchmarks.base import Benchmark
from arpo.errors import ConfigError
from arpo.evaluate.agents.registry import build as build_method
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.metrics import needs_judge
from arpo.task import Task

SMOKE = ("engine.type=local", "rollout.max_tokens=256", "rollout.max_result_tokens=128", "rollout.max_calls=2")
"""What a smoke test sets, below what the command line says: short, and without a network."""
SMOKE_QUESTIONS = 5


@dataclass(frozen=True)
class Request:
    """What a command asks for. `names`: sets, or "all". `files`: folder of published files; None: the hub.

    `ids`: a file that names a subset. `smoke`: rules in place of judges. `against`: folder of an earlier evaluation.
    """

    names: Sequence[str]
    files: Path | None = None
    ids: Path | None = None
    limit: int | None = None
    smoke: bool = False
    against: Path | None = None


@dataclass(frozen=True)
class Chosen:
    """One set of a command, read and ready.

    `metrics`: the headline first; `stands_for`: the judge in whose place the headline is, "" if it is the set's own.
    `notes`: what is to be said of it.
    """

    benchmark: Benchmark
    tasks: list[Task]
    metrics: tuple[str, ...]
    stands_for: str = ""
    notes: tuple[str, ...] = ()


def judge_of(config: Config) -> JudgeSettings | None:
    """Who judges: the evaluation's own judge, else that of the reward."""
    return config.evaluation.judge or config.reward.judge


def choose(config: Config, request: Request) -> list[Chosen]:
    """The sets with their tasks and metrics, in the registry's order. Raises ConfigError, DataError."""
    if request.smoke and request.files is None:
        raise ConfigError("--smoke reads local files: name their folder with --files")
    if request.limit is not None and request.limit < 1:
        raise ConfigError(f"--limit {request.limit}: a set is measured on one question or more")
    if request.against is not None and not request.against.is_dir():
        raise ConfigError(f"--against {request.against}: no such folder of an earlier evaluation")
    build_method(config.evaluation.agent)
    found = None if request.files is None else files.locate(request.files)
    sets = _sets(request, found)
    if request.ids is not None and len(sets) > 1:
        raise ConfigError(f"--ids names a subset of one set, not of {len(sets)}; give one --benchmark")
    how = [_how(one, config, request.smoke) for one in sets]
    return [Chosen(one, _tasks(one, request, found), *measured) for one, measured in zip(sets, how, strict=True)]


def _sets(request: Request, found: Mapping[str, Path] | None) -> list[Benchmark]:
    if list(request.names) == ["all"]:
        if found is not None and not found:
            raise ConfigError(f"{request.files} holds none of the sets: {', '.join(registry.names())}")
        return [registry.get(name) for name in (registry.names() if found is None else found)]
    wanted = {registry.get(name).name for name in request.names}
    missing = sorted(wanted - found.keys()) if found is not None else []
    if missing:
        raise ConfigError(
            f"{request.files} holds no {missing[0]} (there is: {', '.join(found or ()) or 'none'}); expected "
            f"{request.files}/{missing[0]}/test.jsonl, or leave --files out to read it from the hub"
        )
    return [one for one in registry.ALL if one.name in wanted]


def _tasks(benchmark: Benchmark, request: Request, found: Mapping[str, Path] | None) -> list[Task]:
    source = None if found is None else found[benchmark.name]
    return files.read(benchmark, source, limit=request.limit, ids=request.ids)


_How = tuple[tuple[str, ...], str, tuple[str, ...]]
"""Metrics, what the first stands for, notes."""


def _how(benchmark: Benchmark, config: Config, smoke: bool) -> _How:
    named = config.evaluation.metrics
    if smoke:
        return _smoke_metrics(benchmark, named)
    return _metrics(benchmark, named, judge_of(config) is not None)


def _smoke_metrics(benchmark: Benchmark, named: Sequence[str]) -> _How:
    """Rules alone, the set's own rule first where the headline would be a judge."""
    wanted = tuple(named or benchmark.metrics)
    rules = [name for name in wanted if not needs_judge(name)]
    if wanted[0] in rules:
        return tuple(rules), "", ()
    first = rules[:1] if named and rules else [benchmark.rule]
    note = f"measured by the rule {first[0]} in place of {wanted[0]}, which asks a judge (--smoke)"
    return tuple(dict.fromkeys([*first, *rules])), wanted[0], (note,)


def _metrics(benchmark: Benchmark, named: Sequence[str], has_judge: bool) -> _How:
    """The metrics that are named, or the set's own. Raises ConfigError for a judge that is missing.

    Of the judges that a set is known to be measured by only the first is asked, unless more are named: each costs a
    request per answer.
    """
    wanted = tuple(named or benchmark.metrics)
    judged = [name for name in wanted if needs_judge(name)]
    if not judged or (named and has_judge):
        return wanted, "", ()
    if has_judge:
        return tuple(name for name in wanted if name not in judged[1:]), "", ()
    if named or wanted[0] in judged:
        raise ConfigError(
            f"{benchmark.name} is measured by {judged[0]!r}, which needs a judge: give --judge-url URL and "
            f"--judge-model NAME (table [evaluation.judge]), or a rule in its place: --metric {benchmark.rule}"
        )
    rules = tuple(name for name in wanted if name not in judged)
    return rules, "", (f"not measured by {judged[0]}, which needs a judge (--judge-url, --judge-model)",)
