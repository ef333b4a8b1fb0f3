"""`arpo index`: build, ask and check an index over a corpus on this machine."""

import json as codec
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from arpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from arpo.tools.search import Hit, Index
    from arpo.tools.search.bm25 import Progress as Told

app = App(name="index", help="Indexes over corpora on this machine, for the tool `search` and for `arpo serve-search`.")

BROKEN = 1
"""Exit code: the index is there and not what was built."""

Folder = Annotated[Path, Parameter(help="An index folder, a JSONL or Parquet file with one beside it, or factbook.")]


@app.command
def build(
    *corpus: Annotated[
        Path, Parameter(help="JSONL (.gz too) or Parquet files of {id, title, text} or {id, contents}.")
    ],
    out: Annotated[Path, Parameter(help="The index folder; an index that is there is replaced.")],
    kind: Annotated[
        Literal["bm25s", "tantivy"], Parameter(help="bm25s up to some millions of passages, tantivy beyond.")
    ] = "bm25s",
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress.")] = False,
) -> int:
    """Index the passages of one or more files."""
    from arpo.tools.search import build_index
    from arpo.tools.search.corpus import read_corpora

    if not corpus:
        raise ConfigError("arpo index build needs a corpus: one or more JSONL or Parquet files")
    started = time.perf_counter()
    with _progress(quiet) as told:
        index = build_index(read_corpora(corpus), out, kind, progress=told)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print(f"{out}: {len(index):,} passages, {kind}, {size:,.1f} MB, {time.perf_counter() - started:.1f} s")
    return 0


@contextmanager
def _progress(quiet: bool) -> Iterator["Told"]:
    """A line on a terminal's standard error that counts; in a log, a line now and then."""
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _Log()
    else:
        columns = (SpinnerColumn(), TextColumn("{task.fields[count]:,} passages"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None, count=0)
            yield lambda count: bar.update(task, count=count)


class _Log:
    """A line every ten seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, count: int) -> None:
        if time.monotonic() - self._last >= 10:
            self._last = time.monotonic()
            print(f"{count:,} passages", file=sys.stderr, flush=True)


@app.command
def query(
    folder: Folder,
    text: Annotated[str, Parameter(help="What to look for.")],
    /,
    *,
    k: Annotated[int, Parameter(name=["--top-k", "-k"], help="Results at most.")] = 5,
    json: Annotated[bool, Parameter(negative="", help="For programs.")] = False,
) -> int:
    """Print the passages that match best, the best first."""
    if k < 1:
        raise ConfigError(f"--top-k is the number of results, at least 1; got {k}")
    hits = open_named(folder).query(text, k)
    if json:
        print(
            codec.dumps({"query": text, "results": [_plain(rank, hit) for rank, hit in enumerate(hits, 1)]}, indent=1)
        )
        return 0
    for rank, hit in enumerate(hits, 1):
        print(_line(rank, hit))
    if not hits:
        print("no results")
    return 0


def _plain(rank: int, hit: "Hit") -> dict[str, object]:
    document = hit.document
    return {"rank": rank, "score": hit.score, "id": document.id, "title": document.title, "text": document.text}


def _line(rank: int, hit: "Hit") -> str:
    """One line, without what could fool a terminal."""
    from arpo.tools.results import clean

    return clean(f"{rank}. {hit.score:.3f}  {hit.document.id}  {hit.document.line}")


@app.command
def check(folder: Annotated[Path, Parameter(help="An index folder.")], /) -> int:
    """Compare every byte of an index with what was built, and some searches with bm25s's own.

    Opening an index reads no more than samples of its files. Exit code 1: it is damaged.
    """
    from arpo.tools.search.audit import audit

    if not folder.is_dir():
        raise DataError(f"{folder}: no such index folder")
    try:
        index, compared = audit(folder)
    except DataError as error:
        print(f"arpo: {error}", file=sys.stderr)
        return BROKEN
    searches = f", {compared} searches as bm25s has them" if compared else ""
    print(f"{folder}: {len(index):,} passages, {index.kind}; all files are what was built{searches}")
    return 0


def open_named(folder: Path) -> "Index":
    """The index in a folder or beside a corpus file, or the factbook's. Raises DataError."""
    from arpo.tools.search import open_corpus

    if str(folder) == "factbook":
        from arpo.data.factbook.corpus import ensure_index

        return ensure_index()
    return open_corpus(folder)
