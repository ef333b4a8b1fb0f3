"""The words of an index on disk, sorted, looked up where they lie.

A dictionary of a million words costs a second and a hundred megabytes in every process; a binary search over mapped
bytes costs microseconds per word and nothing to open, and processes share the pages. Words are sorted by code point,
which is also the order of their UTF-8 bytes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_BYTES, _STARTS = "words.bin", "words.npy"


def write_vocabulary(words: Sequence[str], folder: Path) -> None:
    """`words`, sorted and distinct; a word's place is its id."""
    starts = np.zeros(len(words) + 1, np.int64)
    with (folder / _BYTES).open("wb") as file:
        for place, word in enumerate(words, 1):
            starts[place] = starts[place - 1] + file.write(word.encode())
    np.save(folder / _STARTS, starts)


class Vocabulary:
    """The words of the index in `folder`, a sequence of their bytes."""

    def __init__(self, folder: Path) -> None:
        self._starts = mapped(folder / _STARTS)
        self._bytes = mapped_bytes(folder / _BYTES)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int) -> bytes:
        return self._bytes[self._starts[place] : self._starts[place + 1]].tobytes()

    def find(self, word: str) -> int | None:
        """The id of `word`."""
        wanted = word.encode()
        place = bisect_left(self, wanted)
        return place if place < len(self) and self[place] == wanted else None


def mapped(path: Path) -> np.ndarray:
    """The array of a .npy file, mapped read-only; as a plain ndarray, of which single elements are read faster."""
    return np.load(path, mmap_mode="r").view(np.ndarray)


def mapped_bytes(path: Path) -> memoryview:
    """The bytes of a file, mapped read-only; an empty file, which cannot be mapped, as no bytes."""
    return np.memmap(path, np.uint8, "r").data if path.stat().st_size else memoryview(b"")
