"""The measured rows, for people and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arpo.bench.rollout_rows import RolloutRow
from arpo.bench.rows import UpdateRow
from arpo.bench.tools import SandboxRow
from arpo.bench.tools_search import SearchRow
from arpo.errors import StorageError

_COLUMNS = ("tokens", "GFLOP", "seconds", "GEMM", "peak MB", "work", "speed-up", "CPU", "of work")
_ABOUT = (
    "tokens: through the model, padding included. seconds: one gradient, median of the rounds, without the optimiser's "
    "step. GEMM: counted work / seconds, as a share of the speed of the model's largest matrix product alone. peak: "
    "memory beyond the model. work, speed-up, CPU: operations, seconds, CPU seconds of the form / those of the tree. "
    "of work: speed-up / work. rho: trajectory tokens / unique tokens, what sharing could save at most."
)


def render(rows: Sequence[UpdateRow]) -> RenderableType:
    """Per model and shape a line of text and a table with a line per form, and what the columns mean."""
    parts: list[RenderableType] = []
    for row in rows:
        parts += [Text(headline(row), style="bold"), _table(row), Text()]
    return Group(*parts, Text(_ABOUT, style="dim"))


def headline(row: UpdateRow) -> str:
    """What was measured, in one line."""
    return (
        f"{row.model} {row.shape}: rho {row.rho:.2f}, {row.unique_tokens:,} unique tokens of {row.flat_tokens:,}; "
        f"speed-up {row.speedup:.2f} [{row.speedup_least:.2f}, {row.speedup_most:.2f}] in {row.rounds} rounds; step "
        f"{row.seconds_step:.2f} s; {row.device_name}, {row.dtype}, {row.threads} thread(s)"
    )


def _table(row: UpdateRow) -> Table:
    table = Table("", box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    speedups = (1.0, row.speedup_sequence, row.speedup)
    cpu = (1.0, row.speedup_cpu_sequence, row.speedup_cpu)
    tokens = (row.computed_tree, row.computed_sequence, row.padded_tokens)
    for form, count, speedup, busy in zip(("tree", "sequence", "padded"), tokens, speedups, cpu, strict=True):
        table.add_row(form, f"{count:,}", *_cells(row, form, speedup, busy))
    return table


def _cells(row: UpdateRow, form: str, speedup: float, cpu: float) -> list[str]:
    work, seconds, peak = (getattr(row, f"{what}_{form}") for what in ("work", "seconds", "bytes"))
    ratio = work / row.work_tree
    return [
        f"{work / 1e9:,.0f}",
        f"{seconds:.2f}",
        f"{work / seconds / row.gemm_speed:.0%}",
        "-" if peak is None else f"{peak / 1e6:,.0f}",
        f"{ratio:.2f}",
        f"{speedup:.2f}",
        f"{cpu:.2f}",
        f"{speedup / ratio:.2f}",
    ]


def write_json(rows: Sequence[UpdateRow | RolloutRow | SandboxRow | SearchRow], path: Path) -> None:
    """A list of objects, one per row. Raises StorageError if the file cannot be written."""
    try:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}); the figures are on the screen") from error
