"""From a folder of published files, or the hub, to the tasks of a set.

Layouts in circulation are ROOT/SET/test.jsonl (search agents and ARPO's release), ROOT/SET.jsonl, and what
`hf download` leaves (ROOT/SET/data/test-00000-of-00001.parquet); folders are told by name, case aside. What cannot be
told apart is refused: a figure on the wrong split looks like any other.
"""

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from arpo.data import rows as tables
from arpo.data.benchmarks.base import Benchmark
from arpo.data.benchmarks.registry import ALL, names_of
from arpo.data.benchmarks.subset import Subset
from arpo.data.columns import UnusableError
from arpo.data.rows import Row, is_saved
from arpo.errors import DataError
from arpo.task import Task

log = logging.getLogger(__name__)

SUFFIXES = (*tables.SUFFIXES, ".csv")
_VALIDATION = ("validation", "valid", "dev")
"""One split under three names."""
_SPLITS = ("test", *_VALIDATION, "main", "metadata")
"""Names of files in the order of preference, behind the set's own split."""
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")


def locate(root: str | Path) -> dict[str, Path]:
    """The file (or pattern of shards) of each set found under `root`, by the set's name, in the registry's order.

    `root` may be the folder of one set. Raises DataError if there is no such folder, or a set's file cannot be told.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder of benchmark files (expected ROOT/SET/test.jsonl, ROOT/SET.jsonl, ...)"
        )
    places = {place.stem.lower(): place for place in sorted(root.iterdir()) if place.suffix in SUFFIXES}
    places |= {place.name.lower(): place for place in sorted(root.iterdir()) if place.is_dir()}
    return _located(places) or _located({root.resolve().name.lower(): root})


def _located(places: Mapping[str, Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for benchmark in ALL:
        place = next((places[name] for name in names_of(benchmark) if name in places), None)
        file = _file_of(benchmark, place) if place is not None else None
        if file is not None:
            found[benchmark.name] = file
    return found


def _file_of(benchmark: Benchmark, place: Path) -> Path | None:
    """The data file of a set's folder, None if the folder holds none."""
    if place.is_file() or is_saved(place):
        return place
    others = {name for other in ALL if other is not benchmark for name in names_of(other)}
    files = [path for path in sorted(place.rglob("*")) if path.suffix in SUFFIXES and _full(path, place)]
    files = [path for path in files if not others & set(_folders(path, place))]
    found = sorted({_pattern(path) for path in files})
    own = _VALIDATION if benchmark.split in _VALIDATION else (benchmark.split,)
    for folders in (((benchmark.config or "").lower(),), own):
        found = [path for path in found if set(_folders(path, place)) & set(folders)] or found
    if "train" not in own:
        found = _without_training(benchmark, place, found)
    for split in dict.fromkeys((*own, *_SPLITS)):
        named = [path for path in found if _stem(path) == split] or [path for path in found if split in _words(path)]
        if len(named) == 1:
            return named[0]
        if named:
            raise DataError(f"{place}: several files of the split {split}: {_listed(named, place)}; keep one")
    if len(found) > 1:
        raise DataError(f"{place}: which file holds {benchmark.title}? {_listed(found, place)}; keep one")
    return next(iter(found), None)


def _without_training(benchmark: Benchmark, place: Path, found: list[Path]) -> list[Path]:
    """A set is not measured on what it is trained on."""
    kept = [path for path in found if "train" not in _words(path)]
    if found and not kept:
        raise DataError(
            f"{place}: {_listed(found, place)}: only rows for training; {benchmark.title} is measured on "
            f"its split {benchmark.split}"
        )
    return kept


def _folders(path: Path, place: Path) -> list[str]:
    return [part.lower() for part in path.relative_to(place).parts[:-1]]


def _stem(path: Path) -> str:
    return path.stem.removesuffix("-*").lower()


def _words(path: Path) -> list[str]:
    return re.split(r"[^a-z0-9]+", _stem(path))


def _full(path: Path, place: Path) -> bool:
    """Not empty, not hidden: releases hold empty files and traces of file browsers."""
    hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
    return path.is_file() and not hidden and path.stat().st_size > 0


def _pattern(path: Path) -> Path:
    """The shards of one split as one pattern."""
    match = _SHARD.fullmatch(path.stem)
    return path.with_name(f"{match[1]}-*{path.suffix}") if match else path


def _listed(paths: list[Path], place: Path) -> str:
    return ", ".join(str(path.relative_to(place)) for path in paths)


def read(
    benchmark: Benchmark, source: str | Path | None = None, *, limit: int | None = None, ids: str | Path | None = None
) -> list[Task]:
    """The set's tasks: of a file, a folder, a pattern of shards, or (None) of the hub.

    `limit`: the first so many. `ids`: a file that names a subset (see `arpo.data.benchmarks.subset`). Rows outside the
    measured subset are left out, counted and said. Raises DataError with the file and the row, or, where the hub is
    out of reach, with what to do.
    """
    subset = Subset.of(benchmark, ids) if ids is not None else None
    skipped: Counter[str] = Counter()
    found = _tasks(benchmark, source, subset, skipped)
    tasks = list(found if limit is None or subset else islice(found, limit))
    for reason, count in sorted(skipped.items()):
        log.warning("%s: %d rows left out (%s)", benchmark.name, count, reason)
    if subset:
        subset.check(str(source or _hub(benchmark)))
    if not tasks:
        raise DataError(f"{source or _hub(benchmark)}: no question of {benchmark.title}")
    _refuse_duplicates(tasks)
    return tasks[:limit]


def _tasks(
    benchmark: Benchmark, source: str | Path | None, subset: Subset | None, skipped: Counter[str]
) -> Iterator[Task]:
    for position, row in enumerate(_rows(benchmark, source), 1):
        reason = benchmark.skip(row.columns)
        if reason:
            skipped[reason] += 1
            continue
        try:
            item = benchmark.item(row.columns)
        except UnusableError as error:
            raise DataError(f"{row.where}: {error}") from error
        if subset is None or subset.holds(item):
            yield benchmark.task(item, row.number, position)


def _rows(benchmark: Benchmark, source: str | Path | None) -> Iterator[Row]:
    if source is None:
        return _hub_rows(benchmark)
    path = Path(source)
    if path.is_dir() and not is_saved(path):
        path = _file_of(benchmark, path) or path
    return _csv_rows(path) if path.suffix == ".csv" else tables.read_rows(path)


def _hub(benchmark: Benchmark) -> str:
    return f"hf:{benchmark.source}{f'/{benchmark.config}' if benchmark.config else ''}@{benchmark.split}"


def _hub_rows(benchmark: Benchmark) -> Iterator[Row]:
    try:
        yield from tables.read_rows(_hub(benchmark))
    except DataError as error:
        raise DataError(
            f"{error}. Or put a published file to ROOT/{benchmark.folders[0]}/test.jsonl (.json, .parquet, .csv) and "
            f"name ROOT: arpo eval --benchmark {benchmark.name} --files ROOT"
        ) from error


def _csv_rows(path: Path) -> Iterator[Row]:
    """CSV as xbench and SimpleQA publish it: a header, UTF-8, every value a text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for number, columns in enumerate(csv.DictReader(lines, strict=True), 1):
                if None in columns or None in columns.values():
                    raise DataError(f"{path}, row {number}: not as many values as the header names; a comma unquoted?")
                yield Row(str(path), path.name, number, columns)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a whole CSV file in UTF-8 ({error}); fetch or write it again") from error


def _refuse_duplicates(tasks: list[Task]) -> None:
    """Ids name seeds and result rows: two questions with one id would draw the same samples."""
    first: dict[str, Task] = {}
    for task in tasks:
        other = first.setdefault(task.id, task)
        if other is not task:
            rows = f"{other.provenance['row']} and {task.provenance['row']}"
            raise DataError(
                f"{task.provenance['benchmark']}: rows {rows} have the same id {task.id!r}; ids must differ"
            )
