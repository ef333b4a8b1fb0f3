"""BM25 scores of every (word, document) pair, computed once, word by word on disk.

The layout is that of bm25s (Lù 2024, "BM25S: Orders of magnitude faster lexical search via eager sparse scoring"): a
sparse matrix by columns, one per word, of the finished scores, so that a query only adds numbers up. Method: BM25 in
Lucene's form, k1 = 1.5, b = 0.75,

    score(w, d) = ln(1 + (N - n_w + 1/2) / (n_w + 1/2)) * f / (f + k1 (1 - b + b |d| / mean |d|))

in the same arithmetic as bm25s, so the numbers are the same to the bit, and `bm25s.BM25.load(folder, load_vocab=False)`
reads them. What bm25s lacks is here: documents stream through, in blocks that are sorted and put on disk, and columns
are finished range by range. So memory holds one block, the distinct words, and some bytes per document.
"""

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from arpo.tools.search.vocabulary import write_vocabulary

K1, B = 1.5, 0.75
_BLOCK = 1_000_000
"""Words of text in a block, and pairs in a range of columns."""


class _Ids(dict[str, int]):
    """A number for every word, given out as words come."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class PostingsWriter:
    """Takes documents one after another and writes their scores into `folder`."""

    def __init__(self, folder: Path, block: int = _BLOCK) -> None:
        self._folder, self._block = folder, block
        self._ids = _Ids()
        self._lengths = array("i")
        self._open = array("i")
        self._first = 0
        self._blocks: list[Path] = []

    def add(self, words: list[str]) -> None:
        """The words of the next document."""
        self._open.extend(map(self._ids.__getitem__, words))
        self._lengths.append(len(words))
        if len(self._open) >= self._block:
            self._put_away()

    def _put_away(self) -> None:
        """The open block to disk: rows (word << 32 | document, times), sorted, one per pair."""
        words = np.frombuffer(self._open, np.int32).astype(np.int64)
        lengths = np.frombuffer(self._lengths, np.int32)[self._first :]
        documents = np.repeat(np.arange(self._first, len(self._lengths)), lengths)
        keys, times = np.unique(words << 32 | documents, return_counts=True)
        path = self._folder / f"block{len(self._blocks)}.npy"
        np.save(path, np.stack((keys, times)))
        self._blocks.append(path)
        self._first, self._open = len(self._lengths), array("i")

    def finish(self, rank_D: np.ndarray) -> None:
        """Write all columns. `rank_D`: int32, the final place of each document in the order in which they came."""
        self._put_away()
        vocabulary = sorted(self._ids.keys() | {""})
        place = {word: at for at, word in enumerate(vocabulary)}
        remap = np.array([place[word] for word in self._ids], np.int64)
        write_vocabulary(vocabulary, self._folder)
        counts = np.zeros(len(vocabulary), np.int64)
        for path in self._blocks:
            counts += self._renamed(path, remap, rank_D, len(vocabulary))
        self._write_columns(counts, rank_D)
        for path in self._blocks:
            path.unlink()

    def _renamed(self, path: Path, remap: np.ndarray, rank_D: np.ndarray, words: int) -> np.ndarray:
        """Give a block its final names of words and documents, and sort it again; returns documents per word."""
        keys, times = np.load(path)
        final = remap[keys >> 32] << 32 | rank_D[keys & 0xFFFFFFFF]
        order = np.argsort(final)
        np.save(path, np.stack((final[order], times[order])))
        return np.bincount(final >> 32, minlength=words)

    def _write_columns(self, counts: np.ndarray, rank_D: np.ndarray) -> None:
        starts = np.concatenate(([0], np.cumsum(counts)))
        np.save(self._folder / "indptr.csc.index.npy", starts)
        data = _new(self._folder / "data.csc.index.npy", np.float32, starts[-1])
        indices = _new(self._folder / "indices.csc.index.npy", np.int32, starts[-1])
        peaks = np.zeros(len(counts), np.float32)
        formula = _Formula(counts, np.frombuffer(self._lengths, np.int32), rank_D)
        blocks = [np.load(path, mmap_mode="r") for path in self._blocks]
        for low, high in _ranges(starts, self._block):
            keys, times = _gathered(blocks, low, high)
            words, documents = keys >> 32, (keys & 0xFFFFFFFF).astype(np.int32)
            here = slice(starts[low], starts[high])
            indices[here], data[here] = documents, formula.scores(words, documents, times)
            _note_peaks(peaks, data[here], counts, low, high)
        np.save(self._folder / "peaks.npy", peaks)
        (self._folder / "params.index.json").write_text(_parameters(len(self._lengths)), encoding="utf-8")


def _gathered(blocks: Sequence[np.ndarray], low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of the words `low` up to `high`, of all blocks, by word and document."""
    parts = []
    for block in blocks:
        ends = np.searchsorted(block[0], (low << 32, high << 32))
        parts.append(block[:, ends[0] : ends[1]])
    keys, times = np.concatenate(parts, axis=1)
    order = np.argsort(keys, kind="stable")
    return keys[order], times[order]


class _Formula:
    """The score of a pair. `counts`: documents per word; `lengths`: words per document, in the order they came."""

    def __init__(self, counts: np.ndarray, lengths: np.ndarray, rank_D: np.ndarray) -> None:
        documents = len(lengths)
        by_count = {n: math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in set(counts.tolist()) if n}
        self._rarity = np.array([by_count.get(n, 0.0) for n in counts.tolist()], np.float32)
        mean = max(lengths.mean(), np.finfo(np.float64).tiny)  # no words at all: there is nothing to divide either
        self._norm_D = np.empty(documents, np.float64)
        self._norm_D[rank_D] = K1 * ((1 - B) + B * lengths / mean)

    def scores(self, words: np.ndarray, documents: np.ndarray, times: np.ndarray) -> np.ndarray:
        """float32, one per pair."""
        often = times.astype(np.float32)
        return (self._rarity[words] * (often / (self._norm_D[documents] + often))).astype(np.float32)


def _ranges(starts: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of columns that together hold about `size` pairs, at least one column each."""
    low, last = 0, len(starts) - 1
    while low < last:
        high = max(int(np.searchsorted(starts, starts[low] + size, "right")) - 1, low + 1)
        yield low, high
        low = high


def _note_peaks(peaks: np.ndarray, scores: np.ndarray, counts: np.ndarray, low: int, high: int) -> None:
    """The highest score of each column."""
    full = low + np.flatnonzero(counts[low:high])
    if len(full):
        firsts = np.concatenate(([0], np.cumsum(counts[full])[:-1]))
        peaks[full] = np.maximum.reduceat(scores, firsts)


def _new(path: Path, dtype: type, size: int) -> np.ndarray:
    """An array in a new .npy file, mapped; an empty one cannot be mapped."""
    if size:
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(int(size),))
    np.save(path, np.zeros(0, dtype))
    return np.zeros(0, dtype)


def _parameters(documents: int) -> str:
    form = {"method": "lucene", "idf_method": "lucene", "dtype": "float32", "int_dtype": "int32", "backend": "numpy"}
    return json.dumps({"k1": K1, "b": B, "delta": 0.5, **form, "num_docs": documents}, indent=1)
