"""Indexes of either kind: opened by what their folder says, built by what the caller says.

bm25s: arrays that are mapped; nothing to install, the same scores as the Python library of that name. For corpora that
are built once, up to some millions of passages. tantivy (extra `tantivy`): an index of compressed segments in Rust, for
corpora beyond that.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from arpo.errors import DataError
from arpo.tools.search.bm25 import Progress, SearchIndex
from arpo.tools.search.corpus import Document, Hit, read_corpus
from arpo.tools.search.folder import MANIFEST, OldIndexError, fingerprint, locked, manifest

KINDS = ("bm25s", "tantivy")
_SUFFIX = {"bm25s": ".index", "tantivy": ".tantivy"}


class Index(Protocol):
    """What searches a corpus on this machine."""

    kind: str
    folder: Path

    def __len__(self) -> int: ...

    def query(self, text: str, k: int) -> list[Hit]:
        """The `k` best documents that share a word with `text`: highest score first, then by id."""
        ...


def build_index(
    docs: Iterable[Document], folder: Path, kind: str, source: str = "", *, progress: Progress = lambda _: None
) -> Index:
    """Index `docs` into `folder`, replacing an index that is there. Raises DataError, and ConfigError for the kind."""
    if kind == "tantivy":
        from arpo.tools.search.tantivy_index import TantivyIndex

        return TantivyIndex.build(docs, folder, source, progress=progress)
    return SearchIndex.build(docs, folder, source, progress=progress)


def open_index(folder: Path, *, full: bool = False) -> Index:
    """The index in `folder`, of whichever kind it is. `full`: compare every byte with what was built.

    Raises DataError if it is missing, damaged or of an older format.
    """
    if manifest(folder)["kind"] == "tantivy":
        from arpo.tools.search.tantivy_index import TantivyIndex

        return TantivyIndex.open(folder, full=full)
    return SearchIndex.open(folder, full=full)


def open_corpus(path: Path, kind: str = "auto") -> Index:
    """The index in folder `path`, or the index of the JSONL or Parquet file `path`.

    A file is indexed into `<path>.index` beside it (tantivy: `<path>.tantivy`), and that index is used again as long as
    the file is unchanged; of several processes that need it at once, one builds it. `kind`: "auto" is whatever the
    folder is, and bm25s for a file.

    Raises DataError naming the path, and the row for a bad row.
    """
    if path.is_dir():
        return _of_kind(open_index(path), kind)
    if not path.is_file():
        raise DataError(
            f"{path}: no such corpus; tools.search.corpus is an index folder, a JSONL or Parquet file or 'factbook'"
        )
    kind = "bm25s" if kind == "auto" else kind
    with locked(path):
        return _index_of_file(path, path.with_name(path.name + _SUFFIX[kind]), kind)


def _of_kind(index: Index, kind: str) -> Index:
    if kind not in ("auto", index.kind):
        raise DataError(
            f'{index.folder}: an index of the kind "{index.kind}", but tools.search.index asks for "{kind}"'
        )
    return index


def _index_of_file(path: Path, folder: Path, kind: str) -> Index:
    source = fingerprint(path)
    if _source_of(folder) == source:
        return open_index(folder)
    try:
        return build_index(read_corpus(path), folder, kind, source)
    except PermissionError as error:
        raise DataError(f"{path}: cannot write its index {folder}; move the file to a folder that you own") from error


def _source_of(folder: Path) -> str | None:
    """What the index was built from; None if there is none, or one of another format, which was made here as well."""
    try:
        return manifest(folder)["source"] if (folder / MANIFEST).is_file() else None
    except OldIndexError:
        return None
