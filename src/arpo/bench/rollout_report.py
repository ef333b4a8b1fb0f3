"""The measured rollouts, for people."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arpo.bench.rollout_rows import RolloutRow

_COLUMNS = ("traj/s", "tokens/s", "tok/traj", "idle", "calls", "executed", "comp/uniq", "peak MB")
_ABOUT = (
    "ratio: trajectories per second of ours / of the other arm, median of the rounds [least, most]; of tokens: sampled "
    "tokens per second; CPU: trajectories per CPU second. tok/traj: sampled tokens, shared ones once. idle: share of "
    "the time in which the model computes nothing. calls: answered; executed: run for them. comp/uniq: token positions "
    "through the model / unique tokens of the trees. peak: memory beyond what was held before. -: not known."
)


def render(rows: Sequence[RolloutRow]) -> RenderableType:
    """Per row a headline and a table with a line per arm, and what the columns mean."""
    parts: list[RenderableType] = []
    for row in rows:
        parts += [Text(headline(row), style="bold"), _table(row), Text()]
    return Group(*parts, Text(_ABOUT, style="dim"))


def headline(row: RolloutRow) -> str:
    """What was measured and what came of it, in one line."""
    more = [
        f"ratio {row.ratio:.2f} [{row.ratio_least:.2f}, {row.ratio_most:.2f}] in {row.rounds} round(s)",
        f"of tokens {row.ratio_tokens:.2f}",
        f"CPU {row.ratio_cpu:.2f}",
    ]
    if row.entropy_overhead is not None:
        more.append(f"entropy {row.entropy_overhead:+.1%}")
    if row.idle_share_full is not None:
        more.append(f"idle {row.idle_share_full:.1%} with {row.in_flight} prompts in flight")
    job = f"{row.prompts} prompts of {row.group}, {row.dtype} on {row.device}, {row.threads} thread(s)"
    return f"{row.model}, tools {row.tools}, against {row.versus}: {'; '.join(more)}; {job}"


def _table(row: RolloutRow) -> Table:
    table = Table("", box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, suffix in (("ours", ""), (row.versus, "_versus")):
        table.add_row(name, *_cells(row, suffix))
    return table


def _cells(row: RolloutRow, suffix: str) -> list[str]:
    def figure(name: str, form: str, scale: float = 1.0) -> str:
        value = getattr(row, name + suffix)
        return "-" if value is None else format(value * scale, form)

    return [
        figure("trajectories_per_s", ",.2f"),
        figure("tokens_per_s", ",.0f"),
        figure("tokens_per_trajectory", ".1f"),
        figure("idle_share", ".1%"),
        figure("calls_requested", ",.0f"),
        figure("calls_executed", ",.0f"),
        figure("computed_over_unique", ".3f"),
        figure("bytes_peak", ",.0f", 1e-6),
    ]
