"""`arpo tools cache`: what a cache of tool results holds, and the way from and to the published file format."""

import json as codec
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from arpo.tools.search.legacy import Report
    from arpo.tools.search.store import Store

app = App(name="cache", help="Caches of tool results: what one holds; import and export of JSON files.")

_SHOWN = 100
"""Characters of a query that are shown."""

CacheFile = Annotated[
    Path | None,
    Parameter(name=["--cache", "-c"], help="The cache; default: the one that tools use unless told otherwise."),
]


@app.command(name="import")
def import_(
    file: Annotated[Path, Parameter(help="A JSON file from queries to rendered results.")], *, cache: CacheFile = None
) -> int:
    """Take the entries of a published search cache into a cache, so that a run can answer from them.

    Entries that carry a prompt's or transcript's markup are left out, and listed with the reason.
    """
    from arpo.tools.search.legacy import import_file

    path = _path(cache)
    with _opened(path, readonly=False) as store:
        report = import_file(file, store)
    nothing = f", {report.negative} of which found nothing" if report.negative else ""
    print(f"{path}: {_entries(report.taken)} imported from {file}{nothing}")
    _tell(report)
    return 0


@app.command
def export(
    file: Annotated[Path, Parameter(help="The JSON file to write; what it holds for other queries stays.")],
    *,
    cache: CacheFile = None,
) -> int:
    """Write the searches of a cache as a JSON file from queries to rendered results."""
    from arpo.tools.search.legacy import export_file
    from arpo.tools.search.web import READERS

    with _opened(_path(cache), readonly=True) as store:
        report = export_file(store, file, READERS)
    kept = f", {report.kept} kept that were there" if report.kept else ""
    print(f"{file}: {_entries(report.taken)} written{kept}")
    _tell(report)
    return 0


@app.command
def stats(
    cache: Annotated[Path | None, Parameter(help="The cache; default: the one that tools use.")] = None,
    *,
    json: Annotated[bool, Parameter(negative="", help="For programs.")] = False,
) -> int:
    """Print what a cache holds, and the hash of its contents that a run's card names."""
    path = _path(cache)
    with _opened(path, readonly=True) as store:
        rows, digest = store.contents(), store.content_hash()
    if json:
        print(codec.dumps({"path": str(path), "sha256": digest, "contents": rows}, indent=2))
        return 0
    print(f"{path}: {_entries(sum(row['entries'] for row in rows))}, content {digest}")
    for row in rows:
        print("  " + _line(row))
    return 0


def _path(cache: Path | None) -> Path:
    from arpo.tools.search.cache_settings import CacheSettings

    return CacheSettings(path="" if cache is None else str(cache)).file


def _opened(path: Path, *, readonly: bool) -> "closing[Store]":
    from arpo.tools.search.store import Store

    return closing(Store(path, readonly=readonly))


def _line(row: dict[str, Any]) -> str:
    nothing = f" ({row['negative']} found nothing)" if row["negative"] else ""
    dates = [datetime.fromtimestamp(row[name], UTC).date() for name in ("oldest", "newest") if row[name] is not None]
    when = f"fetched {dates[0]} to {dates[1]}" if dates else "fetched nobody knows when"
    return f"{row['kind']} {row['provider']}: {_entries(row['entries'])}{nothing}, {_size(row['bytes'])}, {when}"


def _entries(count: int) -> str:
    return f"{count} entry" if count == 1 else f"{count} entries"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _tell(report: "Report") -> None:
    """What was left out or occurred twice, on standard error."""
    for query in report.repeated:
        print(f"more than once, the last one counts: {_short(query)}", file=sys.stderr)
    for left_out in report.rejected:
        print(f"left out: {left_out.reason}: {_short(left_out.query)}", file=sys.stderr)


def _short(query: str) -> str:
    return f"{query[:_SHOWN]!r}{'...' if len(query) > _SHOWN else ''}"
