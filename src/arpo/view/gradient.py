"""The gradient study as one picture: what is wrong with an estimator's direction, and what its noise costs.

One row per credit family, one lane in it per branching rule, three panels over the same rows, so that one look along a
row weighs bias against cost. Groups that are filled up with fresh trajectories are rings of their rule's colour.
"""

from collections.abc import Callable, Sequence

from arpo.study.enumeration import RuleName
from arpo.study.estimators import RULE_LABELS
from arpo.study.gradient import Row
from arpo.view.picture import chart_css
from arpo.view.svg import Plot, marker
from arpo.view.text import safe

LOOKS: dict[RuleName, tuple[str, str]] = {
    "iid": ("s-cold-start", "diamond"),
    "uniform": ("s-python", "square"),
    "state": ("s-arpo", "circle"),
    "after_window": ("s-search", "circle"),
    "before_window": ("s-grpo", "diamond"),
    "state_filled": ("s-arpo", "ring"),
    "after_window_filled": ("s-search", "ring"),
    "scarce_path": ("s-search", "square"),
    "scarce_spread": ("s-search", "diamond"),
    "monitored": ("s-grpo", "square"),
}
"""Colour and shape of each branching rule."""
PANELS: tuple[tuple[str, str, Callable[[Row], float]], ...] = (
    ("Direction", "off-direction error (0: unbiased)", lambda row: row.off_direction),
    ("Noise \u00d7 tokens", "sampled tokens until noise = signal", lambda row: row.variance_tokens),
    ("Noise \u00d7 calls", "tool calls until noise = signal", lambda row: row.variance_calls),
)
MARGIN, NAMES, PANEL, GAP, LANE, TOP = 22, 92, 268, 26, 5.6, 104


def gradient_picture(rows: Sequence[Row]) -> str:
    """A stand-alone SVG document. Raises ValueError without rows."""
    if not rows:
        raise ValueError("no rows, no picture")
    families = list(dict.fromkeys(row.family for row in rows))
    rules = [rule for rule in RULE_LABELS if any(row.rule == rule for row in rows)]
    tall = round(len(families) * (LANE * len(rules) + 8))
    width, height = 2 * MARGIN + NAMES + 3 * PANEL + 2 * GAP, TOP + tall + 62
    panels = "".join(
        f'<g transform="translate({MARGIN + NAMES + place * (PANEL + GAP)} {TOP})">'
        f"{_panel(rows, families, rules, place)}</g>"
        for place in range(len(PANELS))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Gradient estimators"><desc>{safe(_described(rows))}</desc>'
        f"<style>{chart_css()}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="var(--card)"/>'
        f'<text class="title" x="{MARGIN + 2}" y="32">Which gradient estimators point the right way, '
        "and what their noise costs</text>"
        f"{_legend(rules)}{_names(families, tall)}{panels}</svg>\n"
    )


def _panel(rows: Sequence[Row], families: Sequence[str], rules: Sequence[RuleName], place: int) -> str:
    title, axis, value = PANELS[place]
    reach = 1.06 * max(value(row) for row in rows)
    tall = round(len(families) * (LANE * len(rules) + 8))
    plot = Plot(title, (-0.02 * reach, reach), (len(families), 0), PANEL, tall + 46, 0, 0, 0, 46)
    plot.y_axis([(edge, "") for edge in range(len(families) + 1)])
    plot.x_axis([(tick, f"{tick:g}") for tick in plot.to_x.ticks(4) if tick >= 0], axis)
    plot.zero()
    for row in rows:
        lane = families.index(row.family) + (rules.index(row.rule) + 1) / (len(rules) + 1)
        css, shape = LOOKS[row.rule]
        plot.dot(value(row), lane, css, shape, f"{row.family}, {RULE_LABELS[row.rule]}: {value(row):.3g}")
    return f'<text class="row" x="0" y="-10" font-weight="600">{safe(title)}</text>{plot.body()}'


def _names(families: Sequence[str], tall: int) -> str:
    """Family names, level with their rows."""
    step = tall / len(families)
    return "".join(
        f'<text class="row" x="{MARGIN + NAMES - 12}" y="{TOP + (place + 0.5) * step + 4:.1f}" text-anchor="end">'
        f"{safe(family)}</text>"
        for place, family in enumerate(families)
    )


def _legend(rules: Sequence[RuleName]) -> str:
    parts, x = [], MARGIN + 8
    for rule in rules:
        css, shape = LOOKS[rule]
        label = f'<text class="row" x="10" y="4">{RULE_LABELS[rule]}</text>'
        parts.append(f'<g transform="translate({x} 58)">{marker(shape, 0, 0, css)}{label}</g>')
        x += 34 + round(6.5 * len(RULE_LABELS[rule]))
    return "".join(parts)


def _described(rows: Sequence[Row]) -> str:
    return "Off-direction error: " + ", ".join(
        f"{row.family} {RULE_LABELS[row.rule]} {row.off_direction:.3f}" for row in rows
    )
