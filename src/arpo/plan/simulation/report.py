"""Simulations in words, and as a figure."""

from collections.abc import Callable, Iterator, Sequence

from arpo.plan.latency import Mix, names
from arpo.plan.simulation.run import Outcome, Scene
from arpo.plan.simulation.sweep import Pair
from arpo.view.svg import Plot
from arpo.view.text import safe

_NAME = 40
_HEAD = (
    f"{'':<{_NAME}}{'seconds':>9}{'tokens/s':>10}{'engine idle':>13}{'places taken':>14}{'tools idle':>12}{'limit':>14}"
    f"{'lock-step':>11}{'engine idle':>13}{'gain':>7}"
)


def lines(scene: Scene, pairs: Sequence[Pair]) -> Iterator[str]:
    """The base in detail, then one line per variation."""
    yield from base_lines(scene, pairs[0])
    if len(pairs) > 1:
        yield ""
        yield _HEAD
        yield from (_row(pair) for pair in pairs)


def base_lines(scene: Scene, pair: Pair) -> Iterator[str]:
    """Ours beside lock-step rounds."""
    yield (
        f"simulated: {scene.prompts} prompts x {scene.rollout.total} on {scene.replicas} engines, {scene.workers} tool "
        f"workers, seed {scene.seed}"
    )
    yield f"tools: {', '.join(names(scene.mix))}; mean {scene.mix.mean:.2f} s"
    yield ""
    yield f"{'':<{_NAME}}{'ours':>14}{'lock-step':>14}"
    for name, shown in _FIGURES:
        yield f"{name:<{_NAME}}{shown(pair.ours):>14}{shown(pair.rounds):>14}"


_FIGURES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("seconds of a rollout", lambda one: f"{one.seconds:,.1f}"),
    ("tokens per second", lambda one: f"{one.tokens_per_s:,.0f}"),
    ("engine idle, the whole step", lambda one: f"{one.engine_idle:.0%}"),
    ("engine idle until 90 % have answered", lambda one: f"{one.engine_idle_full:.0%}"),
    ("tool workers idle, the whole step", lambda one: f"{one.tools_idle:.0%}"),
    ("tool workers idle until 90 %", lambda one: f"{one.tools_idle_full:.0%}"),
    ("time after 90 % have answered", lambda one: f"{one.tail:.0%}"),
    ("places of an engine taken", lambda one: f"{one.rows_used:.0%}"),
    ("sequences per engine while it is busy", lambda one: f"{one.rows:,.0f}"),
    ("mean wait for a tool worker, s", lambda one: f"{one.tool_wait:.2f}"),
    ("mean wait for the engine, s", lambda one: f"{one.engine_wait:.3f}"),
    ("tokens sampled", lambda one: f"{one.sampled:,}"),
    ("calls answered", lambda one: f"{one.requested:,}"),
    ("calls run", lambda one: f"{one.executed:,}"),
    ("prefix tokens computed", lambda one: f"{one.prefilled:,}"),
    ("cached tokens pushed out", lambda one: f"{one.pushed_out:,}"),
    ("limited by", lambda one: one.limit),
)


def _row(pair: Pair) -> str:
    one, other = pair.ours, pair.rounds
    return (
        f"{pair.name:<{_NAME}}{one.seconds:>9,.1f}{one.tokens_per_s:>10,.0f}{one.engine_idle:>13.0%}"
        f"{one.rows_used:>14.0%}{one.tools_idle:>12.0%}{one.limit:>14}{other.seconds:>11,.1f}"
        f"{other.engine_idle:>13.0%}{pair.gain:>7.2f}"
    )


def markdown(pairs: Sequence[Pair]) -> Iterator[str]:
    """The table of docs/scaling.md."""
    yield (
        "| | seconds | tokens/s | engine idle | its places taken | tools idle | limit | lock-step: seconds | "
        "engine idle | gain |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for pair in pairs:
        one, other = pair.ours, pair.rounds
        yield (
            f"| {pair.name} | {one.seconds:,.1f} | {one.tokens_per_s:,.0f} | {one.engine_idle:.0%} | "
            f"{one.rows_used:.0%} | {one.tools_idle:.0%} | {one.limit} | {other.seconds:,.1f} | "
            f"{other.engine_idle:.0%} | {pair.gain:.2f} |"
        )


_STYLE = (
    ".axis{stroke:#888}.grid{stroke:#ddd}text{font:11px sans-serif;fill:#333}.bar.ours{fill:#2a7f62}"
    ".bar.rounds{fill:#c9a227}@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}}"
)
_ROW, _LEFT, _WIDE = 34, 250, 720


def figure(pairs: Sequence[Pair], mix: Mix) -> str:
    """Two bars per row: seconds of ours and of lock-step rounds. A whole SVG file."""
    most = max(pair.rounds.seconds for pair in pairs) * 1.12
    height = _ROW * len(pairs) + 70
    plot = Plot(
        "Seconds of a rollout", (0, most), (0, len(pairs)), width=_WIDE, height=height, left=_LEFT, top=30, bottom=40
    )
    for place, pair in enumerate(reversed(pairs)):
        plot.label(0, place + 0.5, pair.name, anchor="end", dx=-8)
        for css, one, low in (("ours", pair.ours, 0.52), ("rounds", pair.rounds, 0.14)):
            note = f"{pair.name}, {css}: {one.seconds:.1f} s, engine idle {one.engine_idle:.0%}"
            plot.bar(0, one.seconds, place + low, place + low + 0.34, css, note)
            plot.label(one.seconds, place + low + 0.17, f"{one.seconds:,.0f} s, idle {one.engine_idle:.0%}", dx=4)
    plot.x_axis([(tick, f"{tick:g}") for tick in plot.to_x.ticks()], f"seconds; tools: {', '.join(names(mix))}")
    legend = (
        f'<rect class="bar ours" x="{_LEFT}" y="8" width="12" height="12"/><text x="{_LEFT + 18}" y="18">ours</text>'
        f'<rect class="bar rounds" x="{_LEFT + 70}" y="8" width="12" height="12"/>'
        f'<text x="{_LEFT + 88}" y="18">lock-step rounds; idle: share of the engines\' time</text>'
    )
    title = safe("Simulated rollout: ours against lock-step rounds")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDE} {height}" aria-label="{title}">'
        f"<style>{_STYLE}</style>{legend}{plot.body()}</svg>\n"
    )
