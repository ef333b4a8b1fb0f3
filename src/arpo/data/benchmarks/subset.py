"""Subsets of a set: named by a file, recognised by a fingerprint.

Papers report on subsets that no rule reproduces (103 questions of GAIA, 500 of Humanity's Last Exam, 200 of HotpotQA).
A subset is given by any file that holds it: ids one a line (.txt), or rows of the set in a layout that it is read in.
Rows match by the set's own id or, since layouts renumber, by the question. What a file of results was measured on is
then told by a fingerprint of the questions, which the registry knows for published subsets.
"""

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from arpo.data.benchmarks.base import Benchmark, Item, Row
from arpo.data.columns import UnusableError
from arpo.data.rows import read_rows
from arpo.errors import DataError
from arpo.task import Task


def fold(text: str) -> str:
    """A question as it is compared: NFKC, blanks collapsed."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


@dataclass
class Subset:
    """The rows that a file names. `wanted`: for each, what it can be recognised by (id, question)."""

    file: Path
    wanted: list[tuple[str, ...]]
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, benchmark: Benchmark, file: str | Path) -> "Subset":
        """The subset that `file` names. Raises DataError."""
        path = Path(file)
        wanted: list[tuple[str, ...]]
        if path.suffix == ".txt":
            wanted = [(line.strip(),) for line in _lines(path) if line.strip()]
        else:
            wanted = [_marks(benchmark, row.columns, row.where) for row in read_rows(path)]
        if not wanted:
            raise DataError(f"{path}: names no row of {benchmark.title}")
        return cls(path, wanted)

    def __post_init__(self) -> None:
        self._marks = {mark for marks in self.wanted for mark in marks}

    def holds(self, item: Item) -> bool:
        """Whether the subset names this row."""
        marks = {item.id, fold(item.question)} & self._marks
        self.seen |= marks
        return bool(marks)

    def check(self, source: str) -> None:
        """Every row that the file names was there. Raises DataError naming the first that was not."""
        missing = [marks for marks in self.wanted if not self.seen.intersection(marks)]
        if missing:
            raise DataError(
                f"{self.file}: {len(missing)} of the {len(self.wanted)} rows that it names are not in {source} "
                f"(or are not measured: no text-only questions), the first is {missing[0][0]!r:.80}"
            )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no file of ids, one a line ({error})") from error


def _marks(benchmark: Benchmark, row: Row, where: str) -> tuple[str, ...]:
    try:
        item = benchmark.item(row)
    except UnusableError as error:
        raise DataError(f"{where}: {error}") from error
    return tuple(mark for mark in (item.id, fold(item.question)) if mark)


def fingerprint(benchmark: Benchmark, tasks: Iterable[Task]) -> str:
    """Sixteen hexadecimal digits of SHA-256 over the questions in alphabetical order, the instruction left off."""
    ending = f"\n\n{benchmark.instruction}" if benchmark.instruction else ""
    questions = sorted(fold(task.question.removesuffix(ending)) for task in tasks)
    return hashlib.sha256("\n".join(questions).encode()).hexdigest()[:16]


def edition(benchmark: Benchmark, tasks: Iterable[Task]) -> str:
    """The published subset that these questions are, "" if none that the registry knows."""
    return benchmark.editions.get(fingerprint(benchmark, tasks), "")
