"""From a configuration and question sets to results: who answers, who judges, what is kept and told."""

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from arpo.config.load import Resolved, flat
from arpo.config.question_sets import Chosen, Request, judge_of
from arpo.config.schema import Config
from arpo.config.wire import Policy
from arpo.data.benchmarks.subset import edition
from arpo.engine.settings import OpenAISettings, TinkerSettings
from arpo.evaluate.against import against
from arpo.evaluate.agents.registry import build as build_method
from arpo.evaluate.benchmark import Runner
from arpo.evaluate.estimates import Same
from arpo.evaluate.figures import figures
from arpo.evaluate.folder import opened
from arpo.evaluate.ledger import Ledger
from arpo.evaluate.results import Results, SetResult
from arpo.evaluate.run import sampled
from arpo.evaluate.samples import Sample
from arpo.evaluate.settings import PUBLISHED
from arpo.reward.answers import Mode, score_answer
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.metrics import RULES, build
from arpo.reward.verdict import Metric
from arpo.rollout.scheduler import together
from arpo.task import AnswerKind

OnSet = Callable[[str, int, int], None]
"""Called with (set, questions done, questions in all) after each question."""

_MATTERS = ("model.", "protocol.", "tools.", "rollout.", "engine.type", "engine.served_model")
_DECIDED_ELSEWHERE = (
    "rollout.branching.",
    "rollout.budget.",
    "rollout.total",
    "rollout.initial",
    "rollout.branches",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.concurrency",
    "model.device",
)
"""Not of an evaluation: it does not branch, and has its own temperature."""
_PACKAGES = ("arpo", "torch", "transformers", "math-verify", "vllm")


def for_evaluation(resolved: Resolved) -> Resolved:
    """The same, but for what training alone needs of an engine: log-probs of the whole distribution.

    Few servers report them at temperature 0.6 and top-p 0.95, and no figure of an evaluation reads them.
    """
    engine = resolved.config.engine
    if not isinstance(engine, OpenAISettings | TinkerSettings):
        return resolved
    freed = engine.model_copy(update={"logprobs": "any"})
    return replace(resolved, config=resolved.config.model_copy(update={"engine": freed}))


async def measure(
    resolved: Resolved,
    policy: Policy,
    chosen: Sequence[Chosen],
    request: Request,
    out: Path,
    *,
    overwrite: bool = False,
    on_progress: OnSet | None = None,
) -> Results:
    """Answer and judge every set, keep all of it in `out`, and write the results there.

    Goes on with what `out` holds. Raises ConfigError if that is an evaluation of another policy or other settings.
    """
    config, settings = resolved.config, resolved.config.evaluation
    method = build_method(settings.agent)
    agent = method.fit(policy.agent)
    rollout = sampled(config.rollout, settings.samples, *settings.sampling(PUBLISHED))
    async with AsyncExitStack() as stack:
        metrics = await _built(chosen, judge_of(config), stack)
        attempt = stack.enter_context(opened(out, _sampling(resolved), overwrite=overwrite))
        runner = Runner(method, agent, rollout, settings.seed, attempt)
        sets = await together(_measure_set(one, runner, metrics, config, request, out, on_progress) for one in chosen)
        results = Results(
            about=_about(config, agent.toolbox.names),
            metrics={name: metric.card() for name, metric in metrics.items()},
            sets=sets,
            against=None if request.against is None else str(request.against),
            smoke=request.smoke,
        )
        results.save(out)
    return results


async def _built(chosen: Sequence[Chosen], judge: JudgeSettings | None, stack: AsyncExitStack) -> dict[str, Metric]:
    """Every metric once, asked whether it can be had, closed with the stack."""
    metrics: dict[str, Metric] = {}
    for name in dict.fromkeys(name for one in chosen for name in one.metrics):
        metrics[name] = build(name, judge)
        stack.push_async_callback(metrics[name].close)
        await metrics[name].check()
    return metrics


async def _measure_set(
    one: Chosen,
    runner: Runner,
    metrics: Mapping[str, Metric],
    config: Config,
    request: Request,
    out: Path,
    on_progress: OnSet | None,
) -> SetResult:
    name, settings = one.benchmark.name, config.evaluation
    ledger = Ledger(out / name, runner.agent.dialect.decode)

    def tell(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(name, done, total)

    questions = await runner.measure(one.tasks, [metrics[metric] for metric in one.metrics], ledger, tell)
    found = await asyncio.to_thread(
        figures,
        questions,
        one.metrics,
        passes=settings.passes,
        prices=settings.prices,
        same=_same(one),
        seed=settings.seed,
    )
    compared = None
    if request.against is not None:
        compared = against(questions, request.against / name, one.metrics[0], settings.seed)
    notes = _notes(one, questions, request, compared is None)
    return SetResult(name, _facts(one, request), found, one.stands_for, notes, compared)


def _same(one: Chosen) -> Callable[[str], Same]:
    """Whether two answers to a task say the same, by the headline metric, or by mode "hybrid" where that is a judge."""
    kinds: dict[str, AnswerKind] = {task.id: task.kind for task in one.tasks}
    mode = cast(Mode, one.metrics[0] if one.metrics[0] in RULES else "hybrid")

    def of_task(task: str) -> Same:
        return lambda first, second: score_answer(first, second, mode=mode, kind=kinds[task]) == 1.0

    return of_task


def _notes(one: Chosen, questions: Sequence[Sequence[Sample]], request: Request, alone: bool) -> tuple[str, ...]:
    notes = list(one.notes)
    lost = sum(row.lost for rows in questions for row in rows)
    unjudged = [row.verdicts[one.metrics[0]] for rows in questions for row in rows if not row.lost]
    silent = [verdict.reason for verdict in unjudged if verdict.score is None]
    if lost:
        notes.append(f"{lost} trajectories were lost to the infrastructure; the same command asks for them again")
    if silent:
        notes.append(f"{len(silent)} answers have no verdict ({silent[0]}); the same command has them judged")
    if request.against is not None and alone:
        notes.append(f"{request.against} does not hold this set")
    return tuple(notes)


def _facts(one: Chosen, request: Request) -> dict[str, str]:
    benchmark = one.benchmark
    return {
        "title": benchmark.title,
        "source": f"{request.files}" if request.files is not None else f"hub: {benchmark.source}",
        "split": benchmark.split,
        "edition": edition(benchmark, one.tasks),
        "licence": benchmark.licence,
    }


def _sampling(resolved: Resolved) -> dict[str, Any]:
    """What a trajectory depends on, by dotted name."""
    names = dict(flat(resolved.config.model_dump(mode="json")))
    settings = resolved.config.evaluation
    temperature, top_p = settings.sampling(PUBLISHED)
    own = {"temperature": temperature, "top_p": top_p, "seed": settings.seed, "samples": settings.samples}
    kept = {
        name: value
        for name, value in names.items()
        if name.startswith(_MATTERS) and not name.startswith(_DECIDED_ELSEWHERE)
    }
    return kept | {f"evaluation.{name}": value for name, value in (own | {"agent": settings.agent}).items()}


def _about(config: Config, tools: Sequence[str]) -> dict[str, str]:
    settings, rollout = config.evaluation, config.rollout
    temperature, top_p = settings.sampling(PUBLISHED)
    server = [str(getattr(config.engine, name, None) or "") for name in ("base_url", "served_model")]
    return {
        "command": shlex.join(["arpo", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "model": config.model.path,
        "agent": settings.agent,
        "engine": " ".join([config.engine.type, *server]).strip(),
        "dialect": config.protocol.type,
        "tools": ", ".join(tools) or "none",
        "sampling": (
            f"temperature {temperature}, top-p {top_p}, {settings.samples} per question, seed {settings.seed}; at most "
            f"{rollout.max_tokens} response tokens, {rollout.max_calls} calls"
        ),
        "versions": ", ".join(f"{name} {version}" for name, version in _versions().items()),
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
