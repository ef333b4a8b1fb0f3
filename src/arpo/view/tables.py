"""The report's tables: the same figures as its charts, for reading aloud and copying."""

from collections.abc import Iterable, Mapping, Sequence

from arpo.study.branches import BranchStatistics, Tally
from arpo.study.calls import CallCounts
from arpo.study.traces import WINDOW, Curve
from arpo.view.charts import EVENTS, interval_text
from arpo.view.data import LABELS, MethodRun
from arpo.view.text import duration, number, percent, safe


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """A table from cells that are HTML already; the first cell of a row is its heading."""
    titles = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    body = "".join(_row(*row) for row in rows)
    return f'<table class="{css}"><caption>{caption}</caption>{top}<tbody>{body}</tbody></table>'


def _row(first: str, *rest: str) -> str:
    cells = "".join(f"<td>{cell}</td>" for cell in rest)
    return f'<tr><th scope="row">{first}</th>{cells}</tr>'


def point_table(runs: Mapping[str, MethodRun]) -> str:
    """Every held-out evaluation."""
    rows = [
        (
            LABELS[name],
            str(point.step),
            number(point.generated_tokens),
            number(point.tool_calls),
            duration(point.seconds),
            interval_text(point),
        )
        for name, run in runs.items()
        for point in run.points
    ]
    head = ("Policy", "step", "tokens sampled", "tool calls", "time", "held-out accuracy")
    return table("Held-out evaluations", head, rows)


def family_table(runs: Mapping[str, MethodRun]) -> str:
    """Final accuracy by family and policy."""
    shown = {name: run for name, run in runs.items() if run.per_family}
    families = sorted({family for run in shown.values() for family in run.per_family})
    rows = [
        (
            safe(family),
            *(interval_text(r.per_family[family]) if family in r.per_family else "\u2013" for r in shown.values()),
        )
        for family in families
    ]
    return table("Held-out accuracy by question family", ("Family", *(LABELS[name] for name in shown)), rows)


def entropy_table(runs: Mapping[str, MethodRun]) -> str:
    """Mean entropy of the first tokens by policy and event."""
    rows = [(LABELS[name], *(_first(run.entropy.get(event)) for event in EVENTS)) for name, run in runs.items()]
    return table(f"Mean entropy of the first {WINDOW} tokens, nats", ("Policy", *EVENTS.values()), rows)


def _first(curve: Curve | None) -> str:
    if curve is None:
        return "\u2013"
    low, high = curve.first_ci95
    return f"{curve.first:.3f} ({low:.3f} to {high:.3f})"


def branch_table(found: BranchStatistics) -> str:
    """Decisions and branches by tool and by depth."""
    head = ("", "results", "branched at", "share", "", "opened")
    tools = [_tally(f"after {safe(tool)}", tally) for tool, tally in found.by_tool.items()]
    depths = [_tally(f"call {depth}", tally) for depth, tally in found.by_depth.items()]
    parts = (table("By tool", head, tools), table("By depth (tool results so far)", head, depths))
    return f'<div class="panels two"><div class="scroll">{parts[0]}</div><div class="scroll">{parts[1]}</div></div>'


def _tally(name: str, tally: Tally) -> Sequence[str]:
    share = tally.branched / tally.points
    meter = f'<span class="meter" aria-hidden="true"><span style="width:{100 * share:.0f}%"></span></span>'
    return (name, number(tally.points), number(tally.branched), percent(share, 0), meter, number(tally.opened))


def call_table(counted: Mapping[str, CallCounts]) -> str:
    """Measured calls beside the identity."""
    rows = [
        (
            LABELS[name],
            number(found.trajectories),
            f"{found.per_trajectory:.2f}",
            number(found.flat),
            number(found.requested),
            number(found.executed),
            _ratio(found.measured),
            _ratio(found.identity),
            f"{found.bound:.3f}",
            _ratio(found.reward_per_call),
        )
        for name, found in counted.items()
    ]
    head = (
        "Training",
        "trajectories M",
        "calls each T",
        "calls of all trajectories",
        "of the tree",
        "run, equal ones once",
        "tree / all",
        "identity",
        "bound N / M",
        "reward per call",
    )
    return f'<div class="scroll">{table("Tool calls of the training rollouts", head, rows)}</div>'


def _ratio(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:.3f}"
