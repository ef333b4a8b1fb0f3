"""`arpo eval`: accuracy on held-out tasks, or on published question sets."""

import asyncio
import json as codec
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from arpo.cli.options import Configs, Options, resolve
from arpo.errors import ConfigError

if TYPE_CHECKING:
    from arpo.config.load import Resolved
    from arpo.evaluate.result import Accuracy, EvalResult
    from arpo.evaluate.results import Results, SetResult


@Parameter(name="*")
@dataclass(frozen=True)
class Sets:
    """Published question sets, and short-hands for their settings."""

    benchmark: Annotated[
        str | None, Parameter(help="Sets, comma-separated, or all (`arpo benchmarks list`). Default: held-out tasks.")
    ] = None
    files: Annotated[
        Path | None, Parameter(help="Folder of published files, FOLDER/SET/test.jsonl. Default: the hub.")
    ] = None
    ids: Annotated[Path | None, Parameter(help="File that names a subset of one set: ids one a line, or rows.")] = None
    limit: Annotated[int | None, Parameter(help="The first so many questions of each set.")] = None
    smoke: Annotated[
        bool, Parameter(negative="", help="Five questions of each set found in --files; short answers, no judge.")
    ] = False
    metric: Annotated[
        str | None, Parameter(help="evaluation.metrics: compare answers by these, the headline first.")
    ] = None
    against: Annotated[Path | None, Parameter(help="Paired difference to the evaluation in this folder.")] = None
    overwrite: Annotated[bool, Parameter(negative="", help="Replace what --out holds of another evaluation.")] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Answering:
    """How questions are answered and judged: short-hands for overrides."""

    agent: Annotated[str | None, Parameter(help="evaluation.agent: policy, or a baseline (docs/agents.md).")] = None
    engine: Annotated[str | None, Parameter(help="local, vllm, or the URL of a server (http://HOST:PORT/v1).")] = None
    samples: Annotated[int | None, Parameter(help="evaluation.samples: answers to each question.")] = None
    k: Annotated[tuple[int, ...], Parameter(negative="", help="evaluation.k: each k of pass@k.")] = ()
    judge_url: Annotated[str | None, Parameter(help="evaluation.judge.base_url: a chat server, up to /v1.")] = None
    judge_model: Annotated[str | None, Parameter(help="evaluation.judge.model")] = None


def evaluate(
    *config: Configs,
    options: Options | None = None,
    sets: Sets | None = None,
    answering: Answering | None = None,
    out: Annotated[
        Path | None, Parameter(help="Keep figures and trajectories here. Default for sets: RUN.OUT/eval/AGENT-MODEL.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="All figures as JSON.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress.")] = False,
) -> int:
    """Measure a policy, with 95 % intervals: on held-out tasks, or with --benchmark on published question sets.

    With --benchmark or --smoke everything is kept in --out, and the same command goes on where it was interrupted. Exit
    code 1: a set has no verdict at all.
    """
    sets, options = sets or Sets(), options or Options()
    overrides = _overrides(answering or Answering(), sets)
    if sets.benchmark is None and not sets.smoke:
        _refuse_alone(sets)
        return _held_out(resolve(config, options, *overrides), out, json, quiet)

    from arpo.config.question_sets import SMOKE

    configs = (*SMOKE, *config) if sets.smoke else config
    return _published(resolve(configs, options, *overrides), sets, out, json, quiet)


def _overrides(answering: Answering, sets: Sets) -> list[str]:
    values = {
        "evaluation.agent": answering.agent,
        "evaluation.samples": answering.samples,
        "evaluation.k": ",".join(map(str, answering.k)) or None,
        "evaluation.judge.base_url": answering.judge_url,
        "evaluation.judge.model": answering.judge_model,
        "evaluation.metrics": sets.metric,
    }
    return [*_engine(answering.engine), *(f"{key}={value}" for key, value in values.items() if value is not None)]


def _engine(name: str | None) -> list[str]:
    if name is None:
        return []
    if name in ("local", "vllm"):
        return [f"engine.type={name}"]
    if name.startswith(("http://", "https://")):
        return ["engine.type=openai", f"engine.base_url={name}"]
    raise ConfigError(f"--engine {name}: give local, vllm, or the URL of a server, http://HOST:PORT/v1")


def _refuse_alone(sets: Sets) -> None:
    """Flags that mean nothing for held-out tasks."""
    given = [name for name in ("files", "ids", "limit", "metric", "against") if getattr(sets, name) is not None]
    if given or sets.overwrite:
        raise ConfigError(f"--{(given or ['overwrite'])[0]} goes with --benchmark (a set, several, or all) or --smoke")


def _held_out(resolved: "Resolved", out: Path | None, json: bool, quiet: bool) -> int:
    from arpo.config.evaluation import for_evaluation
    from arpo.config.wire import build_heldout, build_policy, measure_policy
    from arpo.evaluate.store import save
    from arpo.train.runfolder import storage

    resolved = for_evaluation(resolved)
    tasks = build_heldout(resolved.config)
    policy = build_policy(resolved.config, tasks=tasks)
    with _progress(quiet) as progress:
        bar = progress.add_task("held-out tasks", total=len(tasks))

        async def run() -> "EvalResult":
            async with policy:
                await policy.scorer.check()
                return await measure_policy(
                    resolved.config, policy, tasks, lambda done, _: progress.update(bar, completed=done)
                )

        result = asyncio.run(run())
    if out is not None:
        with storage(out):
            save(out, result, policy.agent.dialect.decode)
    if json:
        print(codec.dumps(result.to_dict(), indent=2))
    else:
        Console().print(_table(result))
    return 0


def _published(resolved: "Resolved", sets: Sets, out: Path | None, json: bool, quiet: bool) -> int:
    from arpo.config.evaluation import for_evaluation, measure
    from arpo.config.question_sets import SMOKE_QUESTIONS, Request, choose
    from arpo.config.wire import build_policy

    resolved = for_evaluation(resolved)
    settings = resolved.config
    names = [name.strip() for name in (sets.benchmark or "all").split(",") if name.strip()]
    limit = SMOKE_QUESTIONS if sets.smoke and sets.limit is None else sets.limit
    request = Request(names, sets.files, sets.ids, limit, sets.smoke, sets.against)
    chosen = choose(settings, request)
    folder = out or Path(settings.run.out, "eval", f"{settings.evaluation.agent}-{Path(settings.model.path).name}")
    policy = build_policy(settings, tasks=[task for one in chosen for task in one.tasks])
    with _progress(quiet) as progress:
        bars = {one.benchmark.name: progress.add_task(one.benchmark.name, total=len(one.tasks)) for one in chosen}

        async def run() -> "Results":
            async with policy:
                return await measure(
                    resolved,
                    policy,
                    chosen,
                    request,
                    folder,
                    overwrite=sets.overwrite,
                    on_progress=lambda name, done, _: progress.update(bars[name], completed=done),
                )

        try:
            results = asyncio.run(run())
        except KeyboardInterrupt:
            print(f"arpo: stopped; what is in {folder} is whole, and the same command goes on", file=sys.stderr)
            return 130
    if json:
        print(codec.dumps(results.to_dict(), indent=2, ensure_ascii=False))
    else:
        _say(results, folder)
    silent = [one.name for one in results.sets if one.figures.headline is None]
    if silent:
        print(f"arpo: no answer to {', '.join(silent)} has a verdict; see the notes in {folder}", file=sys.stderr)
    return 1 if silent else 0


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    with Progress(console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        yield progress


def _table(result: "EvalResult") -> Table:
    table = Table("tasks", "n", "accuracy", "95 % interval", box=None, pad_edge=False)
    rows: list[tuple[str, Accuracy | EvalResult]] = [*result.per_family.items(), ("all", result)]
    for name, row in rows:
        table.add_row(name, str(row.n), f"{row.accuracy:.3f}", f"{row.ci95.low:.3f} to {row.ci95.high:.3f}")
    table.caption = (
        f"{result.generated_tokens:,} tokens, {result.tool_calls:,} tool calls, {result.seconds:.0f} s, "
        f"{result.failed} lost to the infrastructure"
    )
    return table


def _say(results: "Results", folder: Path) -> None:
    """The scores, what is to be said of them, and where the rest is."""
    console = Console()
    compared = ["difference"] if results.against is not None else []
    table = Table(*_COLUMNS, *compared, box=None, pad_edge=False)
    for one in results.sets:
        table.add_row(*_row(one), *(_difference(one) for _ in compared))
    console.print(table)
    for one in results.sets:
        for note in one.notes:
            console.print(f"{one.name}: {note}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{folder / 'results.md'}, {folder / 'results.json'}", markup=False, highlight=False, soft_wrap=True)


_COLUMNS = ("set", "questions", "metric", "pass@1", "95 % interval", "calls", "tokens")


def _row(one: "SetResult") -> Sequence[str]:
    found = one.figures
    score = found.headline
    value = "-" if score is None else f"{score.accuracy:.3f}"
    ends = "-" if score is None else f"{score.ci95.low:.3f} to {score.ci95.high:.3f}"
    tokens = f"{found.cost.sampled + found.cost.aside:,}"
    return (one.name, str(found.questions), one.label, value, ends, f"{found.calls:.2f}", tokens)


def _difference(one: "SetResult") -> str:
    if one.against is None:
        return "-"
    value, low, high = one.against.difference
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
