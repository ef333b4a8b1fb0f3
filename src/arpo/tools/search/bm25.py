"""Search over a local corpus: a BM25 index on disk, memory-mapped, the same answer every time.

The index is a folder that is complete or absent: it is written beside its place, sealed with a manifest of sizes and
hashes, and renamed. Opening checks the manifest, because an index cut short by a full disk would otherwise answer, only
wrongly. Documents are stored in the order of their ids, so that equal scores fall back on the id.

bm25s does the scoring (numpy only, arrays mapped, so processes share pages). Method: BM25 in Lucene's form,
k1 = 1.5, b = 0.75.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from arpo.errors import DataError

FORMAT = 1
"""Of the folder; raised when tokens or files change meaning."""
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Document:
    """One passage. `id` is unique in its corpus; `title` may be empty."""

    id: str
    title: str
    text: str

    @property
    def line(self) -> str:
        """What a searcher sees: "title | text" on one line."""
        return " ".join((f"{self.title} | {self.text}" if self.title else self.text).split())


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matched, and its BM25 score (> 0)."""

    document: Document
    score: float


def words(text: str) -> list[str]:
    """The index's tokens: runs of letters and digits, NFKC-normalised, lower case."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


class SearchIndex:
    """A read-only index folder. `build` makes one, `open` checks and maps one."""

    def __init__(self, folder: Path, bm25: Any, starts: np.ndarray, store: np.ndarray) -> None:
        """`starts`: int64 `[documents + 1]`, byte offsets of the JSON lines in `store` (uint8, mapped)."""
        self.folder = folder
        self._bm25 = bm25
        self._starts = starts
        self._store = store

    def __len__(self) -> int:
        return len(self._starts) - 1

    @staticmethod
    def build(docs: Iterable[Document], folder: Path, source: str = "") -> "SearchIndex":
        """Index `docs` into `folder`, replacing an index that is there; `source` is kept in the manifest.

        Raises DataError for no documents at all or an id used twice.
        """
        ordered = sorted(docs, key=lambda doc: doc.id)
        _check_documents(ordered, folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write_scores(ordered, scratch)
            _write_store(ordered, scratch)
            _write_manifest(scratch, len(ordered), source)
            _put_in_place(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return SearchIndex.open(folder)

    @staticmethod
    def open(folder: Path) -> "SearchIndex":
        """Map the index in `folder`. Raises DataError if it is missing, truncated or changed since it was built."""
        _verify(folder)
        bm25 = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        starts = np.load(folder / "starts.npy", mmap_mode="r")
        store = np.memmap(folder / "docs.jsonl", dtype=np.uint8, mode="r")
        return SearchIndex(folder, bm25, starts, store)

    def query(self, text: str, k: int) -> list[Hit]:
        """The `k` best documents that share a word with `text`: highest score first, then by id."""
        vocabulary = self._bm25.vocab_dict
        ids = sorted(vocabulary[word] for word in words(text) if word in vocabulary)
        if not ids:
            return []
        score_D = self._bm25.get_scores_from_ids(ids)
        top = _top(score_D, k)
        return [Hit(self.document(int(place)), float(score_D[place])) for place in top]

    def document(self, place: int) -> Document:
        """The document at `place` in id order."""
        line = self._store[self._starts[place] : self._starts[place + 1]].tobytes()
        return Document(**json.loads(line))


def _top(score_D: np.ndarray, k: int) -> np.ndarray:
    """Places of the k highest positive scores, best first, ties by place."""
    places = np.flatnonzero(score_D > 0)
    if len(places) > k:
        least = np.partition(score_D[places], len(places) - k)[len(places) - k]
        places = places[score_D[places] >= least]
    return places[np.argsort(-score_D[places], kind="stable")][:k]


def _check_documents(ordered: list[Document], folder: Path) -> None:
    if not ordered:
        raise DataError(f"{folder}: cannot build a search index without documents; give it a corpus that has some")
    for one, other in itertools.pairwise(ordered):
        if one.id == other.id:
            raise DataError(f"{folder}: two documents have the id {one.id!r}; make the ids unique")


def _write_scores(ordered: list[Document], folder: Path) -> None:
    tokens = [words(f"{doc.title} {doc.text}") for doc in ordered]
    vocabulary = {word: place for place, word in enumerate(sorted({word for row in tokens for word in row} | {""}))}
    bm25 = bm25s.BM25()
    bm25.index(([[vocabulary[w] for w in row] for row in tokens], vocabulary), show_progress=False)
    bm25.save(folder, show_progress=False)


def _write_store(ordered: list[Document], folder: Path) -> None:
    starts = [0]
    with (folder / "docs.jsonl").open("wb") as file:
        for doc in ordered:
            row = {"id": doc.id, "title": doc.title, "text": doc.text}
            starts.append(starts[-1] + file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n"))
    np.save(folder / "starts.npy", np.array(starts, np.int64))


def _write_manifest(folder: Path, documents: int, source: str) -> None:
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "documents": documents, "source": source, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _put_in_place(scratch: Path, folder: Path) -> None:
    """Move the finished index to its name; an index that is there is moved away first and then removed."""
    for path in scratch.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    scratch.chmod(0o755)
    old = scratch.with_name(scratch.name + ".old")
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, Any]:
    remedy = "build the index again, or point tools.search.corpus to a complete one"
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        readable = manifest["format"] == FORMAT and isinstance(manifest["files"], dict)
    except OSError as error:
        raise DataError(f"{folder}: no search index here ({error.strerror}); {remedy}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: manifest.json of the search index is damaged; {remedy}") from error
    if not readable:
        raise DataError(f"{folder}: search index of format {manifest['format']}, not {FORMAT}; {remedy}")
    return manifest


def _verify(folder: Path) -> None:
    remedy = f"delete {folder} and build the index again"
    for name, facts in _manifest(folder)["files"].items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: missing from the search index; {remedy}")
        if path.stat().st_size != facts["bytes"]:
            raise DataError(f"{path}: {path.stat().st_size} bytes, the manifest says {facts['bytes']}; {remedy}")
        if _digest(path) != facts["sha256"]:
            raise DataError(f"{path}: content differs from what was built (sha256); {remedy}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_corpus(path: Path) -> SearchIndex:
    """The index in folder `path`, or the index of the JSONL file `path`.

    A JSONL file is indexed into `<path>.index` beside it and that index is used again as long as the file is unchanged.
    Raises DataError naming the path, and the row for a bad row.
    """
    if path.is_dir():
        return SearchIndex.open(path)
    if not path.is_file():
        raise DataError(f"{path}: no such corpus; tools.search.corpus is an index folder, a JSONL file or 'factbook'")
    folder = path.with_name(path.name + ".index")
    source = _digest(path)
    if (folder / "manifest.json").is_file() and _manifest(folder)["source"] == source:
        return SearchIndex.open(folder)
    try:
        return SearchIndex.build(read_corpus(path), folder, source)
    except PermissionError as error:
        raise DataError(f"{path}: cannot write its index {folder}; move the file to a folder that you own") from error


def read_corpus(path: Path) -> Iterator[Document]:
    """Documents of a JSONL file, whose rows are {id, title, text} or {id, contents} (first line of contents: title).

    Rows without an id are numbered. Raises DataError naming the row, counted from 1.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _document(line, f"{path}, row {number}", number)


def _document(line: str, where: str, number: int) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); the file may be cut short there") from error
    if not isinstance(row, dict) or not isinstance(row.get("text", row.get("contents")), str):
        raise DataError(
            f"{where}: needs a string under 'text' or 'contents'; keys are id, title, text, or id, contents"
        )
    title, text = _title_and_text(row)
    if not words(f"{title} {text}"):
        raise DataError(f"{where}: no words in it; remove the row")
    return Document(str(row.get("id", f"{number:09d}")), title, text)


def _title_and_text(row: Mapping[str, Any]) -> tuple[str, str]:
    if "text" in row:
        return str(row.get("title") or ""), row["text"]
    first, newline, rest = row["contents"].partition("\n")
    return (first.strip().strip('"'), rest) if newline else ("", first)
