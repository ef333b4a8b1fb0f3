"""The report's charts. Each function takes values and returns SVG; what it draws is said in its description."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor

from arpo.evaluate.intervals import Interval
from arpo.evaluate.result import Accuracy
from arpo.study.branches import BranchStatistics, Share
from arpo.study.traces import WINDOW, Curve
from arpo.view.data import LABELS, TRAINED, MethodRun, Point
from arpo.view.svg import Plot
from arpo.view.text import percent, short, signed

SHAPES = {"cold_start": "diamond", "grpo": "square", "arpo": "circle", "clean_cold_start": "ring"}
EVENTS = {"start": "start of the response", "search": "after a search result", "python": "after a Python result"}
UNTRAINED = {"cold_start": "dashed", "clean_cold_start": "dotted"}

COSTS: dict[str, tuple[str, Callable[[Point], float]]] = {
    "tokens": ("tokens sampled in training", lambda p: p.generated_tokens),
    "calls": ("tool calls executed in training", lambda p: p.tool_calls),
    "seconds": ("minutes of training", lambda p: p.seconds / 60),
}
"""Axes against which accuracy is drawn: name, and value of a point."""


def css(name: str) -> str:
    """Class that colours a policy or an event."""
    return "s-" + name.replace("_", "-")


def accuracy(runs: Mapping[str, MethodRun], cost: str, width: int = 340) -> str:
    """Held-out accuracy against one cost, with 95 % intervals; policies that were not trained are level lines."""
    plot = accuracy_plot(runs, cost, width)
    finals = ", ".join(f"{LABELS[name]} ends at {percent(run.final.accuracy)}" for name, run in runs.items())
    return plot.svg(f"Held-out accuracy against {COSTS[cost][0]}: {finals}.")


def accuracy_plot(runs: Mapping[str, MethodRun], cost: str, width: int = 340, height: int = 230) -> Plot:
    """The panel of `accuracy`, not yet rendered."""
    name, value = COSTS[cost]
    series = {key: trained_points(runs, key) for key in TRAINED if key in runs}
    every = [point for run in runs.values() for point in run.points]
    reach = max([value(point) for points in series.values() for point in points] or [0]) or 1
    low, high = share_range([bound for point in every for bound in point.ci95])
    plot = Plot(f"Held-out accuracy against {name}", (0, reach * 1.04), (low, high), width, height)
    plot.y_axis([(y, percent(y, 0)) for y in plot.to_y.ticks(5)])
    plot.x_axis([(x, short(x)) for x in plot.to_x.ticks(4)], name)
    if "clean_cold_start" in runs:
        _reference(plot, "clean_cold_start", runs["clean_cold_start"].final)
    if "cold_start" in runs:
        plot.strip(*runs["cold_start"].final.ci95, css("cold_start"))
        _reference(plot, "cold_start", runs["cold_start"].final)
    for key, points in series.items():
        _trajectory(plot, key, points, value)
    if "cold_start" in runs:
        final = runs["cold_start"].final
        plot.dot(0, final.accuracy, css("cold_start"), SHAPES["cold_start"], f"Cold start: {interval_text(final)}")
    return plot


def trained_points(runs: Mapping[str, MethodRun], name: str) -> list[Point]:
    """A trained policy's points, begun at the cold start if there is one."""
    points = list(runs[name].points)
    begin = [runs["cold_start"].final] if "cold_start" in runs and points[0].generated_tokens > 0 else []
    return begin + points


def share_range(bounds: Sequence[float]) -> tuple[float, float]:
    """Tenths around the values: an axis that need not begin at 0, because no bar stands on it."""
    low, high = floor(min(bounds) * 10 - 1e-9) / 10, ceil(max(bounds) * 10 + 1e-9) / 10
    return max(low, 0.0), min(max(high, low + 0.1), 1.0)


def _reference(plot: Plot, name: str, point: Point) -> None:
    """A level line with its name: the cold start's on the right, where curves have left it, the other's on the left."""
    right = name == "cold_start"
    plot.level(point.accuracy, f"{css(name)} {UNTRAINED[name]}")
    x, anchor, dx = (plot.x[1], "end", -3) if right else (plot.x[0], "start", 5)
    plot.label(x, point.accuracy, LABELS[name].lower(), f"on-line {css(name)}", anchor, dx=dx, dy=14 if right else -5)


def _trajectory(plot: Plot, name: str, points: Sequence[Point], value: Callable[[Point], float]) -> None:
    xs = [value(point) for point in points]
    plot.band(xs, [p.ci95.low for p in points], [p.ci95.high for p in points], css(name))
    plot.line([(x, p.accuracy) for x, p in zip(xs, points, strict=True)], css(name))
    for x, point in zip(xs, points, strict=True):
        plot.dot(x, point.accuracy, css(name), SHAPES[name], f"{LABELS[name]}: {interval_text(point)}")
    plot.whisker(xs[-1], *points[-1].ci95, css(name))


def interval_text(point: Point | Accuracy) -> str:
    """63.4 % (59.1 to 67.5, n = 500)."""
    low, high = (f"{100 * bound:.1f}" for bound in point.ci95)
    return f"{percent(point.accuracy)} ({low} to {high}, n\u202f=\u202f{point.n})"


def rewards(runs: Mapping[str, MethodRun]) -> str:
    """Mean training reward by step, smoothed over five steps, against tokens sampled; single steps as faint dots."""
    series = {name: run.rewards for name, run in runs.items() if run.rewards}
    every = [point for points in series.values() for point in points]
    low, high = _padded([point.reward for point in every])
    plot = Plot("Training reward", (0, max(p.generated_tokens for p in every) * 1.04), (low, high), width=520)
    plot.y_axis([(y, f"{y:g}") for y in plot.to_y.ticks(5)])
    plot.x_axis([(x, short(x)) for x in plot.to_x.ticks(5)], "tokens sampled in training")
    for name, points in series.items():
        for point in points:
            note = f"{LABELS[name]}, step {point.step}: {point.reward:.3f}"
            plot.dot(point.generated_tokens, point.reward, css(name) + " faint", SHAPES[name], note)
        smooth = _smoothed([point.reward for point in points])
        plot.line([(p.generated_tokens, y) for p, y in zip(points, smooth, strict=True)], css(name))
    ends = ", ".join(f"{LABELS[name]} from {p[0].reward:.2f} to {p[-1].reward:.2f}" for name, p in series.items())
    return plot.svg(f"Mean reward of each training step: {ends}.")


def _smoothed(values: Sequence[float], reach: int = 2) -> list[float]:
    windows = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 0.1
    return low - pad, high + pad


def families(runs: Mapping[str, MethodRun]) -> str:
    """Accuracy by question family, one row each, a marker with its interval per policy."""
    shown = {name: run for name, run in runs.items() if run.per_family}
    names = sorted({family for run in shown.values() for family in run.per_family})
    row = 16 * len(shown) + 14
    left, height = 12 + 7 * max(len(name) for name in names), row * len(names) + 52
    plot = Plot("Held-out accuracy by question family", (0, 1), (len(names), 0), 520, height, left)
    plot.x_axis([(x, percent(x, 0)) for x in (0, 0.25, 0.5, 0.75, 1)], "held-out accuracy")
    for place, family in enumerate(names):
        plot.label(0, place + 0.5, family, "row", "end", dx=-8)
        for turn, (name, run) in enumerate(shown.items()):
            if family in run.per_family:
                y = place + (turn + 1) / (len(shown) + 1)
                _row(plot, y, run.per_family[family], name)
    return plot.svg("Held-out accuracy with 95 % intervals by question family; the table below has the figures.")


def _row(plot: Plot, y: float, found: Accuracy, name: str) -> None:
    plot.span(y, *found.ci95, css(name))
    plot.dot(found.accuracy, y, css(name), SHAPES[name], f"{LABELS[name]}: {interval_text(found)}")


def entropy(name: str, curves: Mapping[str, Curve], ceiling: float) -> str:
    """One policy's entropy by position: at the start, after search results, after Python results."""
    shown = {event: curves[event] for event in EVENTS if event in curves}
    length = max(len(curve.mean) for curve in shown.values())
    plot = Plot(f"{LABELS[name]}: entropy by position", (0, max(length - 1, 1)), (0, ceiling))
    plot.y_axis([(y, f"{y:g}") for y in plot.to_y.ticks(4)])
    plot.x_axis([(x, f"{x:g}") for x in plot.to_x.ticks(5)], "policy tokens since then")
    for event, curve in shown.items():
        xs = list(range(len(curve.mean)))
        tops = [min(y, ceiling) for y in curve.high]
        plot.band(xs, [min(y, ceiling) for y in curve.low], tops, css(event))
        plot.line([(x, min(y, ceiling)) for x, y in zip(xs, curve.mean, strict=True)], css(event))
    means = ", ".join(f"{curve.first:.3f} {EVENTS[event]}" for event, curve in shown.items())
    return plot.svg(f"Mean entropy in nats over the first {WINDOW} tokens: {means}.")


def entropy_ceiling(runs: Mapping[str, MethodRun]) -> float:
    """Top of the entropy axis for all policies: the highest mean at a position that many trajectories reach."""
    curves = [curve for run in runs.values() for event, curve in run.entropy.items() if event in EVENTS]
    solid = [y for c in curves for y, count in zip(c.mean, c.count, strict=True) if count >= 0.1 * max(c.count)]
    return 1.15 * max([*solid, 0.05])


def delta(found: BranchStatistics) -> str:
    """Decisions by delta-H: those that opened a branch above, on top of those that did not."""
    edges, opened, closed = found.delta.edges, found.delta.opened, found.delta.closed
    top = max(a + b for a, b in zip(opened, closed, strict=True))
    plot = Plot("Decisions by \u0394H", (edges[0], edges[-1]), (0, top * 1.08), width=520)
    plot.y_axis([(y, short(y)) for y in plot.to_y.ticks(4)])
    plot.x_axis(
        [(x, f"{x:g}".replace("-", "\u2212")) for x in plot.to_x.ticks(6)], "\u0394H after the tool result, normalised"
    )
    for left, right, yes, no in zip(edges, edges[1:], opened, closed, strict=False):
        where = f"\u0394H {signed(left)} to {signed(right)}"
        plot.bar(left, right, 0, no, "s-closed", f"{where}: {no} without a branch")
        plot.bar(left, right, no, no + yes, "s-arpo", f"{where}: {yes} opened a branch")
    plot.zero()
    return plot.svg(f"{sum(opened)} of {sum(opened) + sum(closed)} decisions opened a branch.")


def worth(found: BranchStatistics) -> str:
    """Share of pairs of trajectories that end with different rewards: siblings of a branch beside strangers."""
    rows = {"parted at a branch": (found.siblings, "arpo"), "share only the prompt": (found.strangers, "cold_start")}
    known = {label: pair for label, pair in rows.items() if pair[0].value is not None}
    plot = Plot("What branches were worth", (0, 1), (len(known), 0), width=520, height=40 + 42 * len(known), left=150)
    plot.x_axis([(x, percent(x, 0)) for x in (0, 0.25, 0.5, 0.75, 1)], "pairs that end with different rewards")
    for place, (label, (share, name)) in enumerate(known.items()):
        plot.label(0, place + 0.5, label, "row", "end", dx=-8)
        _share(plot, place + 0.5, share, name)
    return plot.svg("; ".join(f"{label}: {percent(share.value or 0)}" for label, (share, _) in known.items()))


def _share(plot: Plot, y: float, share: Share, name: str) -> None:
    value, bounds = share.value or 0.0, share.ci95 or Interval(0, 0)
    plot.span(y, *bounds, css(name))
    plot.dot(value, y, css(name), SHAPES[name], percent(value))
    plot.label(bounds.high, y, percent(value), "value", dx=8)
