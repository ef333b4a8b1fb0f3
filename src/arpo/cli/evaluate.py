"""`arpo eval`: accuracy on held-out tasks."""

import asyncio
import json as codec
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from arpo.cli.options import Configs, Options, resolve

if TYPE_CHECKING:
    from arpo.evaluate.result import Accuracy, EvalResult


def evaluate(
    *config: Configs,
    options: Options | None = None,
    out: Annotated[Path | None, Parameter(help="Keep the figures and all trajectories in this folder.")] = None,
    json: Annotated[bool, Parameter(negative="", help="All figures as JSON.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress.")] = False,
) -> int:
    """Measure a policy on held-out tasks, one trajectory each, with 95 % intervals."""
    resolved = resolve(config, options or Options())

    from arpo.config.wire import build_heldout, build_policy, measure_policy
    from arpo.evaluate.store import save
    from arpo.train.runfolder import storage

    tasks = build_heldout(resolved.config)
    policy = build_policy(resolved.config, tasks=tasks)
    with Progress(console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        bar = progress.add_task("held-out tasks", total=len(tasks))

        async def run() -> "EvalResult":
            async with policy:
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
