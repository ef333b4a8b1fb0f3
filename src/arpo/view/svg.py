"""A small chart writer: SVG as text, coloured by CSS classes.

Why not matplotlib: the report follows the reader's light or dark theme, so colours must be CSS variables that only the
page knows, texts must be real text for screen readers and search, and a page with a dozen charts should weigh
kilobytes. Each chart has a title and a description; the figures stand in a table beside it (report room).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, log10

from arpo.view.text import safe

XY = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values `low..high` to pixels `start..end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values in range, about `count` of them, 1, 2 or 5 times a power of ten apart."""
        step = _step((self.high - self.low) / count)
        first, last = -floor(-(self.low - 1e-9 * step) / step), floor((self.high + 1e-9 * step) / step)
        return [round(i * step, 12) for i in range(int(first), int(last) + 1)]


def _step(rough: float) -> float:
    power = 10.0 ** floor(log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)


@dataclass
class Plot:
    """One panel with axes. Add marks, then ask for `svg()`. `x`, `y`: ranges in data units; sizes in pixels."""

    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 340
    height: int = 230
    left: int = 44
    right: int = 12
    top: int = 12
    bottom: int = 40
    _marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.to_x = Scale(*self.x, self.left, self.width - self.right)
        self.to_y = Scale(*self.y, self.height - self.bottom, self.top)

    def line(self, points: Sequence[XY], css: str) -> None:
        """A polyline through `points`."""
        if len(points) > 1:
            self._marks.append(f'<polyline class="line {css}" points="{self._path(points)}"/>')

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], css: str) -> None:
        """The area between two curves."""
        if len(xs) > 1:
            outline = [*zip(xs, high, strict=True), *reversed(list(zip(xs, low, strict=True)))]
            self._marks.append(f'<polygon class="band {css}" points="{self._path(outline)}"/>')

    def strip(self, low: float, high: float, css: str) -> None:
        """A horizontal band across the panel."""
        self.band(self.x, (low, low), (high, high), css)

    def level(self, y: float, css: str) -> None:
        """A horizontal line across the panel."""
        self.line(((self.x[0], y), (self.x[1], y)), css)

    def zero(self) -> None:
        """A vertical line at x = 0."""
        x, low, high = self.to_x(0), self.to_y(self.y[0]), self.to_y(self.y[1])
        self._marks.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>')

    def whisker(self, x: float, low: float, high: float, css: str) -> None:
        """A vertical interval."""
        px = self.to_x(x)
        self._marks.append(
            f'<line class="whisker {css}" x1="{px}" x2="{px}" y1="{self.to_y(low)}" y2="{self.to_y(high)}"/>'
        )

    def span(self, y: float, low: float, high: float, css: str) -> None:
        """A horizontal interval."""
        py = self.to_y(y)
        self._marks.append(
            f'<line class="whisker {css}" x1="{self.to_x(low)}" x2="{self.to_x(high)}" y1="{py}" y2="{py}"/>'
        )

    def dot(self, x: float, y: float, css: str, shape: str, note: str) -> None:
        """A marker; `note` shows on hover."""
        self._marks.append(marker(shape, self.to_x(x), self.to_y(y), css, note))

    def bar(self, left: float, right: float, low: float, high: float, css: str, note: str) -> None:
        """A rectangle in data units, one pixel of air on its right."""
        x, y = self.to_x(left), self.to_y(high)
        wide, tall = max(self.to_x(right) - x - 1, 0.5), self.to_y(low) - y
        self._marks.append(
            f'<rect class="bar {css}" x="{x}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}">'
            f"<title>{safe(note)}</title></rect>"
        )

    def label(
        self, x: float, y: float, text: str, css: str = "", anchor: str = "start", dx: float = 0, dy: float = 4
    ) -> None:
        """Text at a place in data units, moved by pixels."""
        place = f'x="{self.to_x(x) + dx:.2f}" y="{self.to_y(y) + dy:.2f}" text-anchor="{anchor}"'
        self._marks.append(f'<text class="{css}" {place}>{safe(text)}</text>')

    def x_axis(self, labels: Sequence[tuple[float, str]], name: str) -> None:
        """Tick labels below, and what the axis measures."""
        y = self.height - self.bottom
        self._marks.append(f'<line class="axis" x1="{self.left}" x2="{self.width - self.right}" y1="{y}" y2="{y}"/>')
        for value, text in labels:
            x = self.to_x(value)
            self._marks.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{y}" y2="{y + 4}"/>')
            self._marks.append(f'<text class="tick" x="{x}" y="{y + 16}" text-anchor="middle">{safe(text)}</text>')
        middle = (self.left + self.width - self.right) / 2
        self._marks.append(f'<text class="name" x="{middle}" y="{y + 34}" text-anchor="middle">{safe(name)}</text>')

    def y_axis(self, labels: Sequence[tuple[float, str]]) -> None:
        """Grid lines with their labels on the left."""
        for value, text in labels:
            y = self.to_y(value)
            self._marks.append(
                f'<line class="grid" x1="{self.left}" x2="{self.width - self.right}" y1="{y}" y2="{y}"/>'
            )
            self._marks.append(
                f'<text class="tick" x="{self.left - 7}" y="{y + 4}" text-anchor="end">{safe(text)}</text>'
            )

    def svg(self, description: str) -> str:
        """The panel as an `<svg>` element for HTML."""
        return (
            f'<svg class="chart" role="img" viewBox="0 0 {self.width} {self.height}" aria-label="{safe(self.title)}">'
            f"<desc>{safe(description)}</desc>{self.body()}</svg>"
        )

    def body(self) -> str:
        """The marks alone."""
        return "".join(self._marks)

    def _path(self, points: Sequence[XY]) -> str:
        return " ".join(f"{self.to_x(x)},{self.to_y(y)}" for x, y in points)


def marker(shape: str, x: float, y: float, css: str, note: str = "") -> str:
    """A circle, square, diamond or ring of about eight pixels; different shapes, so that colour is not all."""
    title = f"<title>{safe(note)}</title>" if note else ""
    if shape == "square":
        return f'<rect class="dot {css}" x="{x - 3.75}" y="{y - 3.75}" width="7.5" height="7.5" rx="1">{title}</rect>'
    if shape == "diamond":
        corners = f"{x},{y - 5} {x + 5},{y} {x},{y + 5} {x - 5},{y}"
        return f'<polygon class="dot {css}" points="{corners}">{title}</polygon>'
    kind = "ring" if shape == "ring" else "dot"
    return f'<circle class="{kind} {css}" cx="{x}" cy="{y}" r="4">{title}</circle>'
