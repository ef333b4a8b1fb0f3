"""Documents, and the files that they are read from.

A row is {id, title, text}, or {id, contents} with the title on the first line, as published corpora for BM25 have it.
JSONL (also gzipped) and Parquet are read row by row, never as a whole. A row that cannot be used stops the reading with
its number: a corpus that is silently smaller than its file makes questions unanswerable.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from arpo.errors import DataError
from arpo.tools.search.tokens import has_words

_KEYS = ("id", "title", "text", "contents")
_BATCH = 1024
"""Rows of a Parquet file that are held at once."""


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
    """A document that matched, and its score (> 0)."""

    document: Document
    score: float


def read_corpora(paths: Sequence[Path]) -> Iterator[Document]:
    """Documents of several files, one after another. Rows without an id are numbered through all files."""
    before = 0
    for path in paths:
        number = 0
        for number, row in _rows(path):
            yield document(row, f"{path}, row {number}", before + number)
        before += number


def read_corpus(path: Path) -> Iterator[Document]:
    """Documents of a JSONL or Parquet file (by its ending; anything but .parquet is JSONL, .gz is unpacked).

    Rows without an id are numbered. Raises DataError naming the row, counted from 1.
    """
    return read_corpora([path])


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if not path.is_file():
        raise DataError(f"{path}: no such corpus; a corpus is a JSONL or Parquet file of {{id, title, text}}")
    return _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if text := line.decode("utf-8", "replace").strip().lstrip("\ufeff"):
                    yield number, _json_row(text, f"{path}, row {number}")
        except (EOFError, gzip.BadGzipFile) as error:
            raise DataError(f"{path}, row {number + 1}: {error}; the file is cut short or not gzip") from error


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _json_row(text: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); the file may be cut short there") from error
    return row if isinstance(row, dict) else {}


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in _KEYS if name in file.schema_arrow.names]
            if "text" not in names and "contents" not in names:
                raise DataError(f"{path}: needs a column 'text' or 'contents', has {file.schema_arrow.names}")
            for batch in file.iter_batches(batch_size=_BATCH, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {number}: not Parquet, or cut short ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def document(row: Mapping[str, Any], where: str, number: int) -> Document:
    """The document of one row; `number` is the id of a row that has none. Raises DataError starting with `where`."""
    if not isinstance(_text(row), str):
        raise DataError(
            f"{where}: needs a string under 'text' or 'contents'; keys are id, title, text, or id, contents"
        )
    title, text = title_and_text(row)
    if not (has_words(text) or has_words(title)):
        raise DataError(f"{where}: no words in it; remove the row")
    name = row.get("id")
    return Document(_whole(f"{number:09d}" if name is None else str(name)), title, text)


def _text(row: Mapping[str, Any]) -> Any:
    text = row.get("text")
    return row.get("contents") if text is None else text


def title_and_text(row: Mapping[str, Any]) -> tuple[str, str]:
    """Title and text of a row in either form."""
    if row.get("text") is not None:
        return _whole(str(row.get("title") or "")), _whole(row["text"])
    first, newline, rest = _whole(row["contents"]).partition("\n")
    return (first.strip().strip('"'), rest) if newline else ("", first)


def _whole(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can express and no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
