"""`arpo benchmarks`: which published question sets there are, and what a folder of files holds of them."""

import json as codec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from arpo.data.benchmarks.base import Benchmark
    from arpo.task import Task

app = App(name="benchmarks", help="Published question sets that `arpo eval --benchmark` measures on.")

Root = Annotated[
    Path | None,
    Parameter(name="--files", help="A folder ROOT with ROOT/SET/test.jsonl: tell what it holds of each set."),
]
Json = Annotated[bool, Parameter(negative="", help="For programs.")]


@app.command(name="list")
def listing(*, root: Root = None, json: Json = False) -> int:
    """All sets, one a line."""
    from arpo.data.benchmarks.registry import ALL

    held = _held(root)
    entries = [_entry(benchmark) | held.get(benchmark.name, {}) for benchmark in ALL]
    if json:
        print(codec.dumps(entries, indent=1, ensure_ascii=False))
    else:
        Console().print(_table(entries, files=root is not None))
    return 0


@app.command
def show(
    name: Annotated[str, Parameter(help="A set's name, such as hotpotqa.")], /, *, root: Root = None, json: Json = False
) -> int:
    """Everything that is known of one set, and with --files its first question as a policy is asked it."""
    from arpo.data.benchmarks import files, registry

    benchmark = registry.get(name)
    entry = _entry(benchmark)
    if root is not None and benchmark.name in (found := files.locate(root)):
        entry |= _content(benchmark, found[benchmark.name])
        entry |= _example(files.read(benchmark, found[benchmark.name], limit=1)[0])
    if json:
        print(codec.dumps(entry, indent=1, ensure_ascii=False))
    else:
        Console().print(_sheet(entry))
    return 0


def _entry(benchmark: "Benchmark") -> dict[str, Any]:
    """The entry as plain data."""
    config = f"/{benchmark.config}" if benchmark.config else ""
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "questions": benchmark.size,
        "measured": benchmark.subset or "all",
        "metric": benchmark.metric,
        "other_metrics": list(benchmark.metrics[1:]),
        "rule": benchmark.rule,
        "per_type": benchmark.types,
        "hub": f"{benchmark.source}{config}@{benchmark.split}",
        "gated": benchmark.gated,
        "encrypted": benchmark.secret,
        "folders": list(benchmark.folders),
        "licence": benchmark.licence,
        "paper": benchmark.paper,
        "instruction": benchmark.instruction,
        "published_subsets": sorted(benchmark.editions.values()),
        "checked": benchmark.checked,
        "notes": benchmark.notes,
    }


def _held(root: Path | None) -> dict[str, dict[str, Any]]:
    """What the folder holds, by set."""
    from arpo.data.benchmarks import files, registry

    if root is None:
        return {}
    return {name: _content(registry.get(name), path) for name, path in files.locate(root).items()}


def _content(benchmark: "Benchmark", path: Path) -> dict[str, Any]:
    from arpo.data.benchmarks import files
    from arpo.data.benchmarks.subset import edition

    tasks = files.read(benchmark, path)
    return {"file": str(path), "found": len(tasks), "edition": edition(benchmark, tasks)}


def _example(task: "Task") -> dict[str, Any]:
    return {"example": task.question, "answers": list(task.answers), "kind": task.kind}


def _table(entries: list[dict[str, Any]], files: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "questions", "metric", "by rule", "per type"):
        table.add_column(heading, justify="right" if heading == "questions" else "left", no_wrap=True)
    table.add_column("found" if files else "hub", overflow="fold")
    for entry in entries:
        last = _found(entry) if files else entry["hub"] + (" (gated)" if entry["gated"] else "")
        row = (entry["name"], f"{entry['questions']:,}", entry["metric"], entry["rule"], entry["per_type"], last)
        table.add_row(*map(escape, row))
    return table


def _found(entry: dict[str, Any]) -> str:
    if "found" not in entry:
        return "-"
    return f"{entry['found']:,}" + (f" ({entry['edition']})" if entry["edition"] else "")


def _sheet(entry: dict[str, Any]) -> Table:
    """One line per field; what is empty or false is left out, and control characters with it."""
    from arpo.tools.results import clean

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in entry.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if value:
            table.add_row(key.replace("_", " "), escape(clean("yes" if value is True else text)))
    return table
