"""The report of a run: one HTML file that needs nothing else.

No script, no request (a content security policy forbids both), so it opens from a mail or an archive and cannot be
made to do anything by what a model wrote. Each chart has its figures in a table beneath it. What the figures allow one
to say is worked out in `prose`; this module only lays out.
"""

import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

from arpo.errors import StorageError
from arpo.study.branches import BranchStatistics
from arpo.study.traces import WINDOW
from arpo.view import charts, prose
from arpo.view.data import LABELS, TRAINED, MethodRun, ReportData
from arpo.view.picture import chart_css, key, picture
from arpo.view.tables import branch_table, call_table, entropy_table, family_table, point_table, table
from arpo.view.text import number, percent, safe
from arpo.view.tree_html import shade, tree_html

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SECTIONS = {
    "accuracy": "Accuracy against cost",
    "entropy": "Entropy after tool results",
    "branches": "Where branches opened",
    "calls": "Tool calls, counted",
    "trees": "Example trees",
    "how": "How this was made",
}


def write_report(path: Path | str, data: ReportData) -> Path:
    """Write the report to `path`, whole or not at all, and return it. Raises StorageError."""
    return _write(Path(path), render(data))


def write_picture(path: Path | str, data: ReportData) -> Path:
    """Write the one picture that stands for the report, an SVG, to `path` and return it. Raises StorageError."""
    return _write(Path(path), picture(data))


def render(data: ReportData) -> str:
    """The report as HTML."""
    bodies = {
        "accuracy": _accuracy(data),
        "entropy": _entropy(data),
        "branches": _branches(data),
        "calls": _calls(data),
        "trees": _trees(data),
        "how": _how(data),
    }
    shown = {key: body for key, body in bodies.items() if body}
    links = "".join(f'<li><a href="#{key}">{SECTIONS[key]}</a></li>' for key in shown)
    sections = "".join(
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{SECTIONS[key]}</h2>{body}</section>'
        for key, body in shown.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{safe(data.title)}</title>'
        f"<style>{stylesheet()}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the report</a>'
        f'<header class="top"><h1>{safe(data.title)}</h1>{_lead(data)}'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>'
        f'<main id="main">{_cards(data)}{_findings(data)}{sections}</main>'
        f"<footer>Written by arpo. This page holds everything it shows and asks for nothing.</footer></body></html>"
    )


def stylesheet() -> str:
    """The CSS of the report and of its charts."""
    return chart_css() + files("arpo.view").joinpath("report.css").read_text("utf-8")


def _write(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _lead(data: ReportData) -> str:
    trained = [LABELS[name] for name in TRAINED if name in data.runs]
    n = next(iter(data.runs.values())).final.n
    what = f"{' and '.join(trained)} from the same cold start, measured" if len(trained) > 1 else "Measured"
    return f'<p class="lead">{what} on {n} held-out questions. Intervals are 95\u202f% throughout.</p>'


def _cards(data: ReportData) -> str:
    return f'<div class="cards">{"".join(_card(name, data) for name in data.shown)}</div>'


def _card(name: str, data: ReportData) -> str:
    final = data.runs[name].final
    low, high = (f"{100 * bound:.1f}" for bound in final.ci95)
    change = "reference, not a competitor" if name == "clean_cold_start" else "where training begins"
    if name in TRAINED:
        cold = data.runs.get("cold_start")
        change = prose.change(prose.difference(cold, data.runs[name])) if cold else "no cold start to compare with"
    return (
        f'<div class="card {charts.css(name)}"><div class="who">{_swatch(name)}{LABELS[name]}</div>'
        f'<div class="big">{percent(final.accuracy)}</div><p>{low} to {high}, {final.n} questions</p>'
        f"<p>{change}</p></div>"
    )


def _swatch(name: str) -> str:
    """A legend's swatch: line and marker as in the charts."""
    return f'<svg class="key" viewBox="0 0 26 12" aria-hidden="true">{key(name)}</svg>'


def _legend(names: Iterable[str], labels: Mapping[str, str]) -> str:
    return f'<ul class="legend">{"".join(f"<li>{_swatch(name)}{labels[name]}</li>" for name in names)}</ul>'


def _findings(data: ReportData) -> str:
    items = "".join(f"<li>{safe(sentence)}</li>" for sentence in prose.findings(data))
    limits = "".join(f"<li>{safe(sentence)}</li>" for sentence in prose.limits(data))
    cold = f"<p>{safe(data.cold_start)}</p>" if data.cold_start else ""
    return (
        f'<section aria-labelledby="h-found"><h2 id="h-found">What was found</h2><ul class="findings">{items}</ul>'
        f'<h3>What to keep in mind</h3>{cold}<ul class="findings">{limits}</ul></section>'
    )


def _figure(title: str, chart: str, caption: str = "") -> str:
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure><h3>{title}</h3>{chart}{below}</figure>"


def _figures(body: str) -> str:
    return f'<details class="figures"><summary>The figures</summary><div class="scroll">{body}</div></details>'


def _accuracy(data: ReportData) -> str:
    runs = data.shown
    titles = {"tokens": "By tokens sampled", "calls": "By tool calls", "seconds": "By wall time"}
    panels = [_figure(title, charts.accuracy(runs, cost)) for cost, title in titles.items()]
    parts = [
        "<p>Held-out accuracy of the policy as it is sampled (one answer per question), against what its training had "
        "cost until then. Bands are intervals; broken lines are policies that were not trained further.</p>",
        _legend(runs, LABELS),
        f'<div class="panels">{"".join(panels)}</div>',
        _figures(point_table(runs)),
    ]
    more = []
    if any(run.per_family for run in runs.values()):
        more.append(_figure("By question family", charts.families(runs), "Lines are intervals."))
    if any(run.rewards for run in runs.values()):
        caption = "Mean reward of each step (dots) and over five steps (lines). Bonuses and penalties included."
        more.append(_figure("Training reward", charts.rewards(runs), caption))
    if more:
        parts.append(f'<div class="panels two">{"".join(more)}</div>')
    if any(run.per_family for run in runs.values()):
        parts.append(_figures(family_table(runs)))
    return "".join(parts)


def _entropy(data: ReportData) -> str:
    runs = {name: run for name, run in data.shown.items() if any(event in run.entropy for event in charts.EVENTS)}
    if not runs:
        return ""
    ceiling = charts.entropy_ceiling(runs)
    panels = [
        _figure(LABELS[name], charts.entropy(name, run.entropy, ceiling), f"First {WINDOW} tokens: {_readings(run)}.")
        for name, run in runs.items()
    ]
    return (
        "<p>Mean entropy (nats, at the sampling temperature) of the policy's tokens by their distance from the start "
        "of the response or from the end of a tool result. That it rises after tool results is the premise of branching"
        " there; it is a property of a policy and its tools, not a law, so here is what was measured.</p>"
        + _legend(charts.EVENTS, charts.EVENTS)
        + f'<div class="panels">{"".join(panels)}</div>'
        + _figures(entropy_table(runs))
    )


def _readings(run: MethodRun) -> str:
    return safe(prose.entropy_reading(run.entropy))


def _branches(data: ReportData) -> str:
    branched = {name: run.branches for name, run in data.shown.items() if run.branches and run.branches.total.points}
    parts = []
    for name, found in branched.items():
        charted = [
            _figure("Decisions by \u0394H", charts.delta(found), "Blue: opened a branch. Grey: did not.")
            if found.delta.edges
            else "",
            _figure("What they were worth", charts.worth(found), safe(prose.worth_reading(found)))
            if found.siblings.value is not None
            else "",
        ]
        parts.append(f"<h3>{LABELS[name]}</h3><p>{_opened(found)}</p>{branch_table(found)}")
        parts.append(f'<div class="panels two">{"".join(charted)}</div>')
    return "".join(parts)


def _opened(found: BranchStatistics) -> str:
    total, points_differ, busiest = found.total, found.points_differ, found.busiest
    said = (
        f"Over {number(found.trees)} questions the rule decided at {number(total.points)} tool results and branched at "
        f"{number(total.branched)} of them; {number(total.opened)} of the {number(found.wanted)} trajectories it asked "
        "for fitted into the budget."
    )
    if points_differ.value is not None:
        said += (
            f" At {percent(points_differ.value)} of the branching points the two sides ended with different rewards."
        )
    if busiest.value is not None:
        said += (
            f" Where a question had at least two branches, {percent(busiest.value, 0)} of them lay on its busiest "
            "trajectory."
        )
    return said


def _calls(data: ReportData) -> str:
    counted = {name: run.calls for name, run in data.shown.items() if run.calls is not None}
    if not counted:
        return ""
    return (
        "<p>Branching saves calls by counting alone: with N trajectories from the prompt, M in all and T calls each, a "
        "tree makes [N·T + Σ(T − depth)] / (M·T) of the calls of M independent trajectories, never less than N / M. "
        "Measured calls stand beside that identity; a gap means that trajectories differ in length.</p>"
        f"{call_table(counted)}"
    )


def _trees(data: ReportData) -> str:
    if not data.examples:
        return ""
    marks = (0.02, 0.1, 0.3, 0.7, 1.5)
    scale = "".join(f'<span class="e" style="--e:{shade(nats)}">{nats:g}</span>' for nats in marks)
    trees = "".join(tree_html(example, place) for place, example in enumerate(data.examples, 1))
    return (
        "<p>What trajectories share is written once; the text forks where the tree forks. The shade behind the "
        f'policy\u2019s tokens is their entropy in nats: <span class="scale">{scale}</span></p>{trees}'
    )


def _how(data: ReportData) -> str:
    rows = [(safe(name), safe(value)) for name, value in data.facts.items()]
    facts = table("Facts of the run", (), rows, "facts") if rows else ""
    config = f'<h3>Configuration</h3><pre class="config">{safe(data.config)}</pre>' if data.config else ""
    return f'<div class="scroll">{facts}</div>{config}' if facts or config else ""
