"""Rows of data, wherever they lie: one reader for tasks, conversations, checks and conversions.

A source is a file (.jsonl, .json holding a list, .parquet), a folder of such files (shards, in the order of their
names), a pattern (`data/train-*.parquet`), a folder written by `save_to_disk`, or `hf:NAME[/CONFIG][@SPLIT]` for what
the library datasets can load by name or path. CSV is not read: it knows no lists, no numbers and no null, and a gold
answer 007 or an empty field would be guessed at.

Rows come one at a time, so that a check of a large file needs no memory for it. A row that cannot be read is a row
with a fault: `scan_rows` goes on behind it, for checks; `read_rows` stops with the file and the row number.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo.errors import DataError

SUFFIXES = (".jsonl", ".json", ".parquet")
HUB = "hf:"
_BATCH = 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `file`: where it is from, for messages; `name`: the short form of that, for ids; `number`: the line in
    JSONL, else the position, both from 1. `fault` says why a row cannot be read (empty if it can). `raw`: the
    text of its line, where it has one.
    """

    file: str
    name: str
    number: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    raw: str = ""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.file}, row {self.number}"


def read_rows(source: str | Path) -> Iterator[Row]:
    """The rows of a source, in order. Raises DataError naming the file, and the row that cannot be read."""
    for row in scan_rows(source):
        if row.fault:
            raise DataError(f"{row.where}: {row.fault}")
        yield row


def scan_rows(source: str | Path) -> Iterator[Row]:
    """The rows of a source, in order, those included that cannot be read. DataError: there is nothing to read."""
    if str(source).startswith(HUB):
        from arpo.data.hub import named_rows

        yield from named_rows(str(source))
    elif is_saved(Path(source)):
        from arpo.data.hub import saved_rows

        yield from saved_rows(Path(source))
    else:
        for path in files_of(source):
            yield from _READERS[path.suffix](path, _name(path, Path(source)))


def files_of(source: str | Path) -> list[Path]:
    """The files of a source that lies on this machine. Raises DataError where there are none."""
    path = Path(source)
    if path.is_dir():
        found = sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES and _visible(one, path))
        if not found:
            raise DataError(f"{path}: the folder holds no .jsonl, .json or .parquet file")
        return found
    if path.is_file():
        _check_suffix(path)
        return [path]
    found = sorted(path.parent.glob(path.name)) if any(sign in path.name for sign in "*?[") else []
    if not found:
        _check_suffix(path)
        raise DataError(f"{path}: no such file (nor a folder, nor a pattern that fits one)")
    for one in found:
        _check_suffix(one)
    return found


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` of the library datasets wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _visible(path: Path, folder: Path) -> bool:
    return path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path}: data are read from files that end in .jsonl, .json or .parquet, not {path.suffix or 'nothing'!r}"
        )


def _name(path: Path, source: Path) -> str:
    return str(path.relative_to(source)) if source.is_dir() else path.name


def _jsonl_rows(path: Path, name: str) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            line = line.removeprefix(_BOM) if number == 1 else line
            if line.strip():
                yield _json_row(path, name, number, line)


def _json_row(path: Path, name: str, number: int, line: bytes) -> Row:
    cut = "" if line.endswith(b"\n") else "; the file seems to be cut off here, fetch or write it again"
    try:
        text = line.decode().rstrip("\r\n")
        return _row(path, name, number, json.loads(text), text)
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8"
    except json.JSONDecodeError as error:
        fault = f"not JSON ({error.msg}){cut}"
    except (ValueError, RecursionError) as error:
        fault = f"not JSON that can be read ({error})"
    return Row(str(path), name, number, fault=fault, raw=line.decode("utf-8", "backslashreplace").rstrip("\r\n"))


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    if row_by_line(path):
        yield from _jsonl_rows(path, name)
        return
    rows = load_json(path)
    if not isinstance(rows, list):
        raise DataError(
            f"{path}: a .json file is a list of rows, not {type(rows).__name__}; for one row per line name it .jsonl"
        )
    yield from (_row(path, name, number, row) for number, row in enumerate(rows, 1))


def row_by_line(path: Path) -> bool:
    """Releases name JSON lines .json, too: the first line is a whole object, and there is another line."""
    with path.open("rb") as lines:
        one, two = lines.readline().removeprefix(_BOM).strip(), lines.readline().strip()
    return one.startswith(b"{") and one.endswith(b"}") and two.startswith(b"{")


def load_json(path: Path) -> Any:
    """What a .json file holds. Raises DataError."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON, or cut off ({error})") from error


def _row(path: Path, name: str, number: int, value: Any, raw: str = "") -> Row:
    if isinstance(value, dict):
        return Row(str(path), name, number, value, raw=raw)
    fault = f"a row is an object with named columns, not {type(value).__name__}"
    return Row(str(path), name, number, fault=fault, raw=json.dumps(value, ensure_ascii=False))


def _parquet_rows(path: Path, name: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start = 1
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                rows = enumerate(batch.to_pylist(), start)
                yield from (Row(str(path), name, number, columns) for number, columns in rows)
                start += len(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({error}); fetch or write it again") from error


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows, ".parquet": _parquet_rows}
