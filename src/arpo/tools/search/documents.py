"""The documents of an index on disk: JSON lines in the order of their ids, and where each begins.

They are written as they come and put in order at the end, so memory holds their ids and no text.
"""

import itertools
import json
from array import array
from pathlib import Path

import numpy as np

from arpo.errors import DataError
from arpo.tools.search.corpus import Document
from arpo.tools.search.vocabulary import mapped, mapped_bytes

_LINES, _STARTS, _UNORDERED = "docs.jsonl", "starts.npy", "unordered.jsonl"


class DocumentsWriter:
    """Takes documents one after another; `finish` puts them in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / _UNORDERED).open("wb")
        self._ids: list[str] = []
        self._starts = array("q", [0])

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, doc: Document) -> None:
        row = {"id": doc.id, "title": doc.title, "text": doc.text}
        self._starts.append(self._starts[-1] + self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n"))
        self._ids.append(doc.id)

    def close(self) -> None:
        self._file.close()

    def finish(self, target: Path) -> np.ndarray:
        """Order by id. Returns int32: the place of each document, in the order in which they came.

        `target`: where the index is going to be, for messages. Raises DataError for no documents and for an id used
        twice.
        """
        self._file.close()
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        self._check(order, target)
        self._write(order)
        (self._folder / _UNORDERED).unlink()
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        return ranks

    def _check(self, order: list[int], target: Path) -> None:
        if not order:
            raise DataError(f"{target}: cannot build a search index without documents; give it a corpus that has some")
        for one, other in itertools.pairwise(order):
            if self._ids[one] == self._ids[other]:
                raise DataError(f"{target}: two documents have the id {self._ids[one]!r}; make the ids unique")

    def _write(self, order: list[int]) -> None:
        lines = mapped_bytes(self._folder / _UNORDERED)
        starts = np.zeros(len(order) + 1, np.int64)
        with (self._folder / _LINES).open("wb") as file:
            for place, number in enumerate(order, 1):
                line = lines[self._starts[number] : self._starts[number + 1]]
                starts[place] = starts[place - 1] + file.write(line)
        np.save(self._folder / _STARTS, starts)


class Documents:
    """The documents of the index in `folder`, mapped, a sequence in the order of their ids."""

    def __init__(self, folder: Path) -> None:
        self._starts = mapped(folder / _STARTS)
        self._lines = mapped_bytes(folder / _LINES)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int) -> Document:
        return Document(**json.loads(self._lines[self._starts[place] : self._starts[place + 1]].tobytes()))
