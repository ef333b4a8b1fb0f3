"""The table of attempts: one line per attempt, a column per rung and user."""

from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown. A cell has how the attempt ended, and HOLE if it was not contained."""
    columns = sorted({(row["rung"], row["user"]) for row in rows})
    names = list(dict.fromkeys(row["attempt"] for row in rows))
    cells = {(row["attempt"], row["rung"], row["user"]): row for row in rows}
    lines = ["| attempt | row | " + " | ".join(f"{rung}, {user}" for rung, user in columns) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for name in names:
        shown = [_cell(cells.get((name, *column))) for column in columns]
        row = next(row["row"] for row in rows if row["attempt"] == name)
        lines.append(f"| {name} | {row} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *_summary(rows, columns)])


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"HOLE: {row['holes'][0][:80]}" if row["holes"] else row["status"]


def _summary(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for rung, user in columns:
        mine = [row for row in rows if (row["rung"], row["user"]) == (rung, user)]
        held = sum(not row["holes"] for row in mine)
        lag = max((row["lag"] for row in mine), default=0.0)
        lines.append(
            f"{rung}, {user}: {held} of {len(mine)} contained; nothing left after {lag * 1000:.0f} ms at the most"
        )
    held = sum(not row["holes"] for row in rows)
    return [*lines, f"all: {held} of {len(rows)} contained"]
