"""A comparison in figures (`compare.json`), as a table (`compare.md`) and as a picture (`compare.svg`)."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from arpo.compare.figures import AXES, Axis, Curve, Standing, equal_cost, mean_interval, standings, table
from arpo.compare.plan import Plan, training
from arpo.train.runfolder import write_atomic

NAMES: Mapping[Axis, str] = {"tokens": "tokens sampled in training", "calls": "tool calls executed in training"}
POINTS = 60


def write(out: Path, plan: Plan, curves: Mapping[str, Sequence[Curve]], seeds: Sequence[int]) -> None:
    """Write all three from the curves of whole seeds."""
    commands = [shlex.join(("arpo", *training(plan, arm, seeds[0], out).arguments)) for arm in plan.arms]
    figures = {"seeds": list(seeds), "commands": commands}
    write_atomic(out / "compare.json", json.dumps(figures | table(curves), indent=1))
    write_atomic(out / "compare.md", markdown(curves, len(seeds)))
    picture(out / "compare.svg", curves)


def markdown(curves: Mapping[str, Sequence[Curve]], seeds: int) -> str:
    """One table per axis."""
    return "\n\n".join(_section(axis, curves, seeds) for axis in AXES) + "\n"


def _section(axis: Axis, curves: Mapping[str, Sequence[Curve]], seeds: int) -> str:
    found = standings(curves, axis)
    reference = next(iter(found))
    lines = [
        f"At {equal_cost(curves, axis):,.0f} {NAMES[axis]} ({seeds} seeds; brackets are 95 % intervals over seeds)",
        "",
        f"| method | held-out accuracy | mean along the way | minus {reference} | p | p (Holm) |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(name, standing) for name, standing in found.items())])


def _row(name: str, standing: Standing) -> str:
    low, high = standing.ci95
    cells = [name, f"{standing.mean:.3f} [{low:.3f}, {high:.3f}]", f"{standing.area:.3f}"]
    if standing.against is None:
        return f"| {' | '.join([*cells, '', '', ''])} |"
    value, low, high = standing.against.difference
    cells += [f"{value:+.3f} [{low:+.3f}, {high:+.3f}]", f"{standing.against.p:.3f}", f"{standing.against.p_holm:.3f}"]
    return f"| {' | '.join(cells)} |"


def picture(path: Path, curves: Mapping[str, Sequence[Curve]]) -> None:
    """Mean accuracy over seeds against both costs, with bands of 95 %."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, axis in zip(panels, AXES, strict=True):
        xs = np.linspace(0, equal_cost(curves, axis), POINTS)
        for name, runs in curves.items():
            values_XS = np.array([[curve.at(axis, x) for curve in runs] for x in xs])
            bands = np.array([mean_interval(values_S) for values_S in values_XS])
            (line,) = panel.plot(xs, values_XS.mean(1), label=name)
            panel.fill_between(xs, bands[:, 0], bands[:, 1], color=line.get_color(), alpha=0.15, linewidth=0)
        panel.set_xlabel(NAMES[axis])
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("held-out accuracy")
    panels[0].legend()
    figure.savefig(path, metadata={"Date": None})
