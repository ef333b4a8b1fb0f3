"""Files of rows being written: whole or not at all, in the format that the name says.

What is written stands under a name of its own until it is complete, so that a full disk or Ctrl-C leaves the file that
was there, or none.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from arpo.errors import ConfigError, DataError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, Any]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when all has been written. Raises StorageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raises ConfigError where a file would be lost."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: is there already; name another file, or say --overwrite")


def dumped(value: Any) -> str:
    """One line of JSON. What is not Unicode stays escaped, what JSON does not know becomes text."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, default=str)
    return text


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """JSON lines; how many. Raises StorageError."""
    count = 0
    with replacing(path) as file:
        for line in lines:
            file.write(line.encode() + b"\n")
            count += 1
    return count


def write_list(path: Path, lines: Iterable[str]) -> int:
    """A JSON list, an element a line; how many. Raises StorageError."""
    count = 0
    with replacing(path) as file:
        file.write(b"[")
        for count, line in enumerate(lines, 1):
            file.write((b"\n" if count == 1 else b",\n") + line.encode())
        file.write(b"\n]\n")
    return count


def write_parquet(path: Path, rows: Iterable[Columns], schema: "pa.Schema", *, batch: int = 1000) -> int:
    """A Parquet file; how many rows. Raises StorageError, DataError for a value that the schema has no place for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    with replacing(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for piece in _pieces(rows, batch):
            try:
                table = pa.Table.from_pylist(piece, schema=schema)
            except (pa.ArrowException, UnicodeEncodeError) as error:
                span = f"{count + 1} to {count + len(piece)}"
                raise DataError(f"{path}: one of the rows {span} does not fit its columns ({error})") from error
            writer.write_table(table)
            count += len(piece)
    return count


def _pieces(rows: Iterable[Columns], size: int) -> Iterator[list[Columns]]:
    piece: list[Columns] = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece
