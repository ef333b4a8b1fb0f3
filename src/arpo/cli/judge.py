"""`arpo judge`: what a judge is asked, and how far it agrees with people."""

import asyncio
import json as codec
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from arpo.reward.judge.audit import Audit
    from arpo.reward.judge.settings import JudgeSettings
    from arpo.reward.verdict import Metric

app = App(name="judge", help="Judges of answers: the prompt of one, and its agreement with labels.")

_LISTED = 10
"""Disagreements that are shown."""

MetricName = Annotated[str, Parameter(name="--metric", help="judge, judge_paper, hle, simpleqa, xbench, or a rule.")]
Prompt = Annotated[Path | None, Parameter(help="A file with another wording: {question}, {gold}, {answer}.")]


@app.command
def prompt(metric: MetricName = "judge", *, prompt: Prompt = None) -> int:
    """Print what a judge is asked, and its hash."""
    from arpo.errors import ConfigError
    from arpo.reward.judge.registry import protocol
    from arpo.reward.metrics import needs_judge

    if not needs_judge(metric):
        raise ConfigError(f"the metric {metric!r} is a rule, so nobody is asked anything")
    found = protocol(metric, None if prompt is None else str(prompt))
    print(f"# {found.name}, hash {found.hash}, follows {found.follows}\n\n{found.preamble}\n\n{found.prompt}")
    return 0


@app.command
def audit(
    file: Annotated[Path, Parameter(help="JSONL with question, gold, answer and label (true or false).")],
    *,
    metric: MetricName = "judge",
    judge_url: Annotated[str | None, Parameter(help="A chat server, up to /v1.")] = None,
    judge_model: Annotated[str | None, Parameter(help="The model's name there.")] = None,
    key_env: Annotated[str, Parameter(help="Environment variable with the key.")] = "OPENAI_API_KEY",
    prompt: Prompt = None,
    cache: Annotated[Path | None, Parameter(help="SQLite file that keeps verdicts.")] = None,
    rule_first: Annotated[bool, Parameter(help="Ask only about what rules do not find right.")] = True,
    json: Annotated[bool, Parameter(negative="", help="For programs.")] = False,
) -> int:
    """Compare verdicts with labels: agreement, kappa, confusion, and where they differ."""
    from arpo.reward.judge.audit import audit as compare
    from arpo.reward.judge.audit import read_labelled
    from arpo.reward.metrics import build

    rows = read_labelled(file)
    options = {"prompt": prompt, "cache": cache}
    paths = {name: None if path is None else str(path) for name, path in options.items()}
    settings = _settings(judge_url, judge_model, key_env=key_env, rule_first=rule_first, **paths)
    decider = build(metric, settings)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("answers", total=len(rows))

        async def run() -> "Audit":
            try:
                await decider.check()
                return await compare(rows, decider, lambda: progress.advance(bar))
            finally:
                await decider.close()

        found = asyncio.run(run())
    _tell(found, decider, json)
    return 0


def _settings(url: str | None, model: str | None, **options: Any) -> "JudgeSettings | None":
    from pydantic import ValidationError

    from arpo.errors import ConfigError
    from arpo.reward.judge.settings import JudgeSettings

    if url is None and model is None:
        return None
    if url is None or model is None:
        raise ConfigError("a judge has an address and a model: give both --judge-url and --judge-model")
    try:
        return JudgeSettings(base_url=url, model=model, **options)
    except ValidationError as error:
        raise ConfigError("; ".join(f"judge.{one['loc'][0]}: {one['msg']}" for one in error.errors())) from error


def _tell(found: "Audit", metric: "Metric", json: bool) -> None:
    from arpo.evaluate.intervals import wilson

    agreed = found.found.confusion[True, True] + found.found.confusion[False, False]
    interval = wilson(agreed, found.found.n)
    if json:
        print(codec.dumps({"judge": metric.card(), **found.to_dict(), "ci95": list(interval)}, indent=2))
        return
    kappa = "undefined (only one label)" if found.found.kappa is None else f"{found.found.kappa:.3f}"
    print(
        f"agreement {found.found.agreement:.3f} (95 % interval {interval.low:.3f} to {interval.high:.3f}), "
        f"kappa {kappa}, {found.found.n} answers, {found.unjudged} without a verdict"
    )
    console = Console()
    console.print(_confusion(found))
    if found.disagreements:
        console.print(_differences(found))


def _confusion(found: "Audit") -> Table:
    table = Table("label", "called right", "called wrong", box=None, pad_edge=False)
    for label, name in ((True, "right"), (False, "wrong")):
        table.add_row(name, *(str(found.found.confusion[label, verdict]) for verdict in (True, False)))
    return table


def _differences(found: "Audit") -> Table:
    table = Table("row", "label", "verdict", "by", "answer", "gold", box=None, pad_edge=False)
    for row, said in found.disagreements[:_LISTED]:
        texts = (escape(text[:60]) for text in (row.answer, " | ".join(row.task.answers)))
        table.add_row(str(row.row), "right" if row.right else "wrong", said.grade or f"{said.score:g}", said.by, *texts)
    if len(found.disagreements) > _LISTED:
        table.caption = f"and {len(found.disagreements) - _LISTED} more; all of them with --json"
    return table
