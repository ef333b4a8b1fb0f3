"""The one picture that stands for a report: held-out accuracy against tokens and against tool calls.

One SVG with its own style sheet, so that it follows a reader's light or dark theme wherever it is shown.
"""

from importlib.resources import files

from arpo.view import charts
from arpo.view.data import LABELS, TRAINED, ReportData
from arpo.view.svg import marker
from arpo.view.text import safe

WIDTH, HEIGHT = 840, 352
PANEL = (392, 262)


def chart_css() -> str:
    """The CSS that charts need: colours for both themes, lines, texts."""
    return files("arpo.view").joinpath("chart.css").read_text("utf-8")


def key(name: str) -> str:
    """A legend's swatch of 26 by 12 pixels: line and marker as in the charts."""
    dashed = f" {charts.UNTRAINED[name]}" if name in charts.UNTRAINED else ""
    dot = marker(charts.SHAPES[name], 13, 6, charts.css(name)) if name in TRAINED else ""
    return f'<line class="line {charts.css(name)}{dashed}" x1="1" x2="25" y1="6" y2="6"/>{dot}'


def picture(data: ReportData) -> str:
    """The picture as a stand-alone SVG document."""
    runs, (width, height) = data.shown, PANEL
    panels = "".join(
        f'<g transform="translate({18 + place * (width + 20)} 76)">'
        f"{charts.accuracy_plot(runs, cost, width, height).body()}</g>"
        for place, cost in enumerate(("tokens", "calls"))
    )
    described = ", ".join(f"{LABELS[name]} {charts.interval_text(run.final)}" for name, run in runs.items())
    n = next(iter(runs.values())).final.n
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="Held-out accuracy against training cost"><desc>{safe(described)}</desc>'
        f"<style>{chart_css()}</style>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="var(--card)"/>'
        f'<text class="title" x="24" y="32">Held-out accuracy against what training cost</text>'
        f'<text x="{WIDTH - 22}" y="32" text-anchor="end">{n} questions, 95\u202f% intervals, {_seeds(data)}</text>'
        f"{_legend(data)}{panels}</svg>\n"
    )


def _seeds(data: ReportData) -> str:
    return "one seed per method" if data.seeds == 1 else f"{data.seeds} seeds per method"


def _legend(data: ReportData) -> str:
    parts, x = [], 24
    for name in data.shown:
        label = f'<text class="row" x="33" y="10">{LABELS[name]}</text>'
        parts.append(f'<g transform="translate({x} 48)">{key(name)}{label}</g>')
        x += 54 + round(6.6 * len(LABELS[name]))
    return "".join(parts)
