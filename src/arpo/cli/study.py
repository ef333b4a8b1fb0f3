"""`arpo study`: what the method does, measured on its own."""

import json as codec
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from arpo.study.enumeration import RuleName
    from arpo.study.gradient import Row

_WIDTH = 116
"""Columns that the widest table needs, whatever a pipe or a narrow terminal says: no figure may be cut off."""

app = App(name="study", help="What the method does, measured on its own.")


@app.command
def gradient(
    *,
    family: Annotated[
        tuple[str, ...], Parameter(negative="", help="A credit family to measure; may be repeated. Default: all.")
    ] = (),
    rule: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="A way of branching to measure; may be repeated. Default: those of the page."),
    ] = (),
    json: Annotated[Path | None, Parameter(help="Write all figures to this file.")] = None,
    svg: Annotated[Path | None, Parameter(help="Draw the figures into this file.")] = None,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress.")] = False,
) -> int:
    """Bias, variance and cost of gradient estimators under branching rules, exactly.

    All groups of trajectories of a toy episode are enumerated, so nothing is sampled. See docs/gradient.md.
    """
    from arpo.study.enumeration import RULES
    from arpo.study.estimators import EPISODE
    from arpo.study.gradient import FAMILIES, measure, to_dict

    families, rules = family or FAMILIES, cast("tuple[RuleName, ...]", rule) or RULES
    rows: list[Row] = []
    with Progress(console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        bar = progress.add_task("families under rules", total=len(families) * len(rules))
        for row in measure(EPISODE, families, rules):
            rows.append(row)
            progress.update(bar, completed=len(rows))
    _print(rows)
    if json is not None:
        _write(json, codec.dumps(to_dict(EPISODE, rows), indent=1) + "\n")
    if svg is not None:
        from arpo.view.gradient import gradient_picture

        _write(svg, gradient_picture(rows))
    return 0


def _write(file: Path, text: str) -> None:
    from arpo.train.runfolder import storage, write_atomic

    with storage(file):
        write_atomic(file, text)


def _print(rows: "Sequence[Row]") -> None:
    measures: dict[str, Callable[[Row], str]] = {
        "off-direction error": lambda row: f"{row.off_direction:.3f}",
        "cosine to the true gradient": lambda row: f"{row.cos:.4f}",
        "bias": lambda row: f"{row.bias:.3f}",
        "variance": lambda row: f"{row.variance:.2f}",
        "variance x sampled tokens": lambda row: f"{row.variance_tokens:.0f}",
        "variance x tool calls": lambda row: f"{row.variance_calls:.1f}",
    }
    console = Console(width=max(Console().width, _WIDTH))
    if (quoted := _estimators(rows)).row_count:
        console.print(quoted, "")
    console.print(_costs(rows))
    for name, text in measures.items():
        console.print("", _matrix(name, rows, text))


def _estimators(rows: "Sequence[Row]") -> Table:
    """The estimators that the study is quoted for, as far as they were measured."""
    from arpo.study.estimators import ESTIMATORS, RULE_LABELS

    table = _table("estimator", "family", "rule", "cos", "off-direction", "variance", "x tokens", "x calls")
    found = {(row.family, row.rule): row for row in rows}
    for one in ESTIMATORS:
        if row := found.get((one.family, one.rule)):
            figures = (f"{row.cos:.4f}", f"{row.off_direction:.3f}", f"{row.variance:.2f}")
            costs = (f"{row.variance_tokens:.0f}", f"{row.variance_calls:.1f}")
            table.add_row(one.label, one.family, RULE_LABELS[one.rule], *figures, *costs)
    return table


def _costs(rows: "Sequence[Row]") -> Table:
    """What a group costs under each rule."""
    from arpo.study.estimators import RULE_LABELS

    table = _table("one group", "trajectories", "sampled tokens", "tool calls")
    for row in {row.rule: row for row in rows}.values():
        table.add_row(RULE_LABELS[row.rule], f"{row.trajectories:.2f}", f"{row.tokens:.2f}", f"{row.calls:.2f}")
    return table


def _matrix(name: str, rows: "Sequence[Row]", text: "Callable[[Row], str]") -> Table:
    """One measure, families down, rules across."""
    from arpo.study.estimators import RULE_LABELS

    rules = list(dict.fromkeys(row.rule for row in rows))
    table = _table(name, *(RULE_LABELS[rule] for rule in rules))
    for family in dict.fromkeys(row.family for row in rows):
        table.add_row(family, *(text(row) for row in rows if row.family == family))
    return table


def _table(first: str, *others: str) -> Table:
    """Columns as wide as the longest word of their header; figures to the right."""
    table = Table(box=None, pad_edge=False)
    for name in (first, *others):
        left = name in (first, "family", "rule")
        table.add_column(name, justify="left" if left else "right", min_width=max(map(len, name.split())))
    return table
