"""What an evaluation of one question set keeps, written so that a killed one goes on where it stopped.

    <folder>/samples.jsonl       one line per trajectory, a question's lines together
    <folder>/trees.parquet       the trajectories themselves, token by token, one row group per question
    <folder>/pending/*.parquet   trees since the last end of a run, one file per question

A question's tree is written before its lines, so that lines mean that all of it is there. Of several lines of one
trajectory the last counts (a verdict that was missing came later); a line that was torn by a kill is cut off.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from arpo.data.trees import SCHEMA, Decode, read_trees, write_trees
from arpo.errors import DataError
from arpo.evaluate.samples import Sample, from_line, key_of
from arpo.task import Task
from arpo.train.runfolder import storage
from arpo.tree import RolloutTree

SAMPLES, TREES, PENDING = "samples.jsonl", "trees.parquet", "pending"


class Ledger:
    """The folder of one question set. `decode` gives the text of trees. Raises DataError for damaged lines."""

    def __init__(self, folder: Path, decode: Decode) -> None:
        self.folder, self._decode = folder, decode
        with storage(folder):
            (folder / PENDING).mkdir(parents=True, exist_ok=True)
            _cut_torn_line(folder / SAMPLES)
        self._rows: dict[tuple[str, str], dict[int, Sample]] = {}
        for row in read_samples(folder):
            self._remember(row)

    def _remember(self, row: Sample) -> None:
        self._rows.setdefault((row.task, row.key), {})[row.number] = row

    def rows(self, task: Task, samples: int) -> list[Sample]:
        """The `samples` trajectories of a question in order; empty unless all are there."""
        known = self._rows.get((task.id, key_of(task)), {})
        return [known[number] for number in range(samples)] if set(known) >= set(range(samples)) else []

    def keep(self, rows: Sequence[Sample], tree: RolloutTree) -> None:
        """Write a question: on disk before this returns."""
        with storage(self.folder):
            write_trees(self._pending(tree.task_id), [tree], step=0, decode=self._decode)
            with (self.folder / SAMPLES).open("a", encoding="utf-8") as file:
                file.write("".join(row.line() for row in rows))
        for row in rows:
            self._remember(row)

    def tree(self, task: Task) -> RolloutTree:
        """The tree that was kept for a question. Raises DataError if it is gone."""
        pending = self._pending(task.id)
        if pending.exists():
            return read_trees(pending)[0]
        merged = self.folder / TREES
        group = _groups(merged).get(task.id)
        if group is None:
            raise DataError(f"{merged}: the trajectories of {task.id} are missing; measure anew in another --out")
        with pq.ParquetFile(merged) as file:
            pq.write_table(file.read_row_group(group, use_threads=False), pending)
        return read_trees(pending)[0]

    def merge(self, tasks: Sequence[Task]) -> None:
        """Put all trees into one file, those of `tasks` first and in their order."""
        merged = self.folder / TREES
        groups = _groups(merged)
        names = dict.fromkeys([*(task.id for task in tasks), *groups])
        fresh = [self._pending(name) for name in names if self._pending(name).exists()]
        if not fresh:
            return
        draft = merged.with_name(f".{TREES}.tmp")
        with storage(self.folder):
            _write(draft, self._tables(names, groups))
            draft.replace(merged)
            for file in fresh:
                file.unlink()

    def _tables(self, names: Iterable[str], groups: Mapping[str, int]) -> Iterator[pa.Table]:
        """Each question's rows, those that are pending before those of the merged file."""
        with ExitStack() as opened:
            merged = opened.enter_context(pq.ParquetFile(self.folder / TREES)) if groups else None
            for name in names:
                pending = self._pending(name)
                if pending.exists():
                    with pq.ParquetFile(pending) as file:
                        yield file.read(use_threads=False)
                elif merged is not None and name in groups:
                    yield merged.read_row_group(groups[name], use_threads=False)

    def _pending(self, task_id: str) -> Path:
        return self.folder / PENDING / f"{hashlib.sha256(task_id.encode()).hexdigest()[:24]}.parquet"


def read_samples(folder: Path) -> list[Sample]:
    """All lines of a folder, in the order in which they were written; none if there is no file.

    Raises DataError with the line's number.
    """
    file = folder / SAMPLES
    if not file.exists():
        return []
    rows: list[Sample] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            rows.append(from_line(line))
        except ValueError as error:
            raise DataError(f"{file}, line {number}: {error}; delete the line, its question is asked again") from error
    return rows


def _cut_torn_line(file: Path) -> None:
    """Drop what follows the last line end: a kill came in the middle of a write."""
    if not file.exists():
        return
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with file.open("r+b") as opened:
            opened.truncate(whole)


def _groups(file: Path) -> dict[str, int]:
    """Which row group holds which question."""
    if not file.exists():
        return {}
    with pq.ParquetFile(file) as opened:
        columns = (opened.read_row_group(group, columns=["task_id"]) for group in range(opened.num_row_groups))
        return {str(column["task_id"][0]): group for group, column in enumerate(columns)}


def _write(path: Path, tables: Iterable[pa.Table]) -> None:
    """One row group per table, their places in the file put right."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for place, table in enumerate(tables):
            column = pa.array([place] * table.num_rows, SCHEMA.field("tree").type)
            writer.write_table(table.set_column(SCHEMA.get_field_index("tree"), SCHEMA.field("tree"), column))
