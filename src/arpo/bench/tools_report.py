"""The measured tools, for people."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arpo.bench.tools import SandboxRow
from arpo.bench.tools_search import SearchRow

_ABOUT_SANDBOX = (
    "A call runs code that imports numpy and sympy. ratio: calls per second / those of a fresh interpreter in a plain "
    "subprocess, median of the rounds [least, most]. p50, p95: of a call. CPU: of its processes. start: until ready."
)
_ABOUT_SEARCH = (
    "open: until the first query can be asked. p50, p95, CPU: of a query, one process alone. together: of as many "
    "processes as stated, over one index. private: memory of an asking process that it shares with nobody."
)


def render(sandboxes: Sequence[SandboxRow], searches: Sequence[SearchRow]) -> RenderableType:
    """A table of each kind that was measured, and what its columns mean."""
    parts: list[RenderableType] = []
    if sandboxes:
        parts += [_sandboxes(sandboxes), Text(_ABOUT_SANDBOX, style="dim"), Text()]
    if searches:
        one = searches[0]
        about = f"{one.passages:,} passages, {one.megabytes_text:,.1f} MB of text, top {one.top_k}. {_ABOUT_SEARCH}"
        parts += [_searches(searches), Text(about, style="dim")]
    return Group(*parts)


def _table(first: str, columns: Sequence[str]) -> Table:
    table = Table(first, box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _sandboxes(rows: Sequence[SandboxRow]) -> Table:
    """Two lines per way: one call after another, and several at once."""
    table = _table("Python", ("calls/s", "p50 ms", "p95 ms", "ratio", "CPU ms", "start s"))
    for row in rows:
        if row.note:
            table.add_row(row.backend, row.note)
            continue
        table.add_row(
            row.backend,
            *map(_figure, (row.calls_per_s, row.p50_ms, row.p95_ms)),
            _ratio(row.ratio, row.ratio_least, row.ratio_most),
            *map(_figure, (row.cpu_ms, row.seconds_start)),
        )
        table.add_row(
            f"  {row.parallel} at once",
            *map(_figure, (row.calls_per_s_together, row.p50_ms_together, row.p95_ms_together)),
            _ratio(row.ratio_together, row.ratio_together_least, row.ratio_together_most),
        )
    return table


def _searches(rows: Sequence[SearchRow]) -> Table:
    one = rows[0]
    table = _table("search", ("queries/s", "p50 ms", "p95 ms", "CPU ms", "build s", "open ms", "private MB"))
    for row in rows:
        figures = (row.queries_per_s, row.p50_ms, row.p95_ms, row.cpu_ms, row.seconds_build, row.ms_open)
        table.add_row(row.kind, *map(_figure, (*figures, row.megabytes_private)))
        table.add_row(f"  {one.processes} together", *map(_figure, (row.queries_per_s_together, row.p50_ms_together)))
    return table


def _figure(value: float | None) -> str:
    """Three digits, as far as there are any to be trusted."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(middle: float | None, least: float | None, most: float | None) -> str:
    return f"{_figure(middle)} [{_figure(least)}, {_figure(most)}]"
