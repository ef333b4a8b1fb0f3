"""The best documents of a query, exactly, without scoring all of them.

A word that nearly every document has says little, yet its column is as long as the corpus. So columns are added up
from the weightiest word on, and the long ones are left out once what all the rest could add is less than the k-th best
sum so far: a document seen only there cannot be among the best (Turtle and Flood 1995, MaxScore). The documents that
still can be are looked up in the remaining columns, and fall away as those run out. At the end the few that are left
are summed anew, in float32 and by ascending word, as bm25s sums: scores and order are those of the exhaustive sum to
the bit.

Sums in another order may differ by n 2^-24 of themselves for n words; every comparison leaves that much slack.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arpo.tools.search.vocabulary import mapped

_LONG = 1024
"""Documents of a column from which on it is worth asking whether it is needed."""


@dataclass(frozen=True, slots=True)
class Column:
    """A word of a query: the documents that have it, int32 ascending, their float32 scores, and `times` it is asked."""

    documents: np.ndarray
    scores: np.ndarray
    times: int
    most: float
    """That a document can gain by it."""


class Scorer:
    """The columns of the index in `folder`, mapped. May be used by several threads."""

    def __init__(self, folder: Path, documents: int) -> None:
        self._data = mapped(folder / "data.csc.index.npy")
        self._indices = mapped(folder / "indices.csc.index.npy")
        self._starts = mapped(folder / "indptr.csc.index.npy")
        self._peaks = mapped(folder / "peaks.npy")
        self._documents = documents
        self._idle: list[np.ndarray] = []
        """Arrays of a float32 zero per document, one for each thread that scored at the same time."""

    def top(self, ids: Sequence[int], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Places and float32 scores of the `k` best documents for the words `ids` (may repeat), ties by place."""
        columns = [self._column(word, times) for word, times in sorted(Counter(ids).items())]
        slack = 1 + (len(ids) + 8) * 2.0**-23
        documents = self._candidates(sorted(columns, key=lambda column: -column.most), k, slack)
        scores = exact(columns, documents)
        best = best_places(scores, k)
        return documents[best], scores[best]

    def _column(self, word: int, times: int) -> Column:
        here = slice(self._starts[word], self._starts[word + 1])
        return Column(self._indices[here], self._data[here], times, float(self._peaks[word]) * times)

    def _candidates(self, columns: list[Column], k: int, slack: float) -> np.ndarray:
        """Documents, ascending, the `k` best among them. `columns`: the weightiest first."""
        sums = self._idle.pop() if self._idle else np.zeros(self._documents, np.float32)
        seen, number = np.zeros(0, np.int32), 0
        for number, column in enumerate(columns):
            if len(column.documents) >= _LONG and _rest(columns[number:], slack) < kth(sums[seen], k):
                break
            seen = _added(sums, seen, column)
        else:
            number = len(columns)
        documents = np.sort(seen)
        values = sums[documents]
        sums[seen] = 0
        self._idle.append(sums)
        return _narrowed(documents, values, columns[number:], k, slack)


def _rest(columns: Sequence[Column], slack: float) -> float:
    """What a document can gain by all of `columns`."""
    return sum(column.most for column in columns) * slack


def _added(sums: np.ndarray, seen: np.ndarray, column: Column) -> np.ndarray:
    """Add a column to the sums of all documents; returns the documents that have any, in no order."""
    before = sums[column.documents]
    fresh = column.documents[before == 0]
    sums[column.documents] = before + column.scores * np.float32(column.times)
    return np.concatenate((seen, fresh))


def _narrowed(documents: np.ndarray, values: np.ndarray, columns: Sequence[Column], k: int, slack: float) -> np.ndarray:
    """Those of `documents` that can be among the `k` best once `columns` are added to their sums so far, `values`."""
    for number, column in enumerate(columns):
        documents, values = _fit(documents, values, _rest(columns[number:], slack), k, slack)
        values = values + gain(column, documents) * np.float32(column.times)
    return _fit(documents, values, 0.0, k, slack)[0]


def _fit(documents: np.ndarray, values: np.ndarray, rest: float, k: int, slack: float) -> tuple[np.ndarray, np.ndarray]:
    """Without the documents that cannot reach the k-th best sum even if they gain all of `rest`."""
    fit = values * slack + rest >= kth(values, k)
    return documents[fit], values[fit]


def gain(column: Column, documents: np.ndarray) -> np.ndarray:
    """float32, what each of `documents` (ascending) gains by the column once; 0 where it lacks the word."""
    at = np.minimum(np.searchsorted(column.documents, documents), len(column.documents) - 1)
    return np.where(column.documents[at] == documents, column.scores[at], np.float32(0))


def exact(columns: Sequence[Column], documents: np.ndarray) -> np.ndarray:
    """float32, the scores of `documents`, summed in the order of `columns`."""
    scores = np.zeros(len(documents), np.float32)
    for column in columns:
        one = gain(column, documents)
        for _ in range(column.times):
            scores += one
    return scores


def kth(values: np.ndarray, k: int) -> float:
    """The k-th highest value; 0 where there are fewer."""
    return float(np.partition(values, len(values) - k)[len(values) - k]) if len(values) >= k else 0.0


def best_places(scores: np.ndarray, k: int) -> np.ndarray:
    """Where the k highest scores are, best first, the first of equals first."""
    places = np.flatnonzero(scores >= kth(scores, k))
    return places[np.argsort(-scores[places], kind="stable")][:k]
