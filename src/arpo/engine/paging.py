"""The plan of a decoding step's attention: which pages are read together, and by which rows.

Each page that some row needs is read once, for all of its readers: the prompt of sixteen trajectories is read once and
not sixteen times. Pages lie in one tensor and are read in place, in *chunks*: ranges of neighbouring pages, padded to
the number of readers of the busiest page among them. So pages with like numbers of readers should be neighbours, and
pages that nobody reads now (of rows that wait for a tool) should not lie among them.

They come to lie so by moving. A move costs about four reads. `Order` adds up what each step's chunks read beyond what
they had to, and moves pages once that exceeds the price of moving: at most twice the cost of the best moment.

Costs are in reads of one page's keys and values. Shapes: B rows, N pages per row, P pages, K (page, reader) pairs, C
tokens per page; the pairs of a chunk are laid out page by page and padded, U places in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_GRAIN = 32
"""Chunks begin and end at multiples of this."""
_CALL = 12.0
"""Cost of one more chunk: about ten small operations per layer."""
_MOVE = 4.0


def reading(readers: np.ndarray) -> np.ndarray:
    """Cost of a page with so many readers: a product with a matrix costs more than one with a vector, then little."""
    return np.where(readers > 1, 1.2 + 0.05 * readers, 1.0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pages `start` to `stop`, with `readers` places each. `row_U`: the row whose query is put at each place."""

    start: int
    stop: int
    readers: int
    row_U: torch.Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """Chunks, and where each row finds its parts: `part_BN` indexes the places of all chunks, one after the other.

    The place after the last (`places`) stands for nothing. `bias_PC`: minus infinity where a page is not written yet.
    """

    chunks: tuple[Chunk, ...]
    part_BN: torch.Tensor
    places: int
    bias_PC: torch.Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk before its places are filled."""

    start: int
    stop: int
    readers: int

    @property
    def cost(self) -> float:
        return (self.stop - self.start) * float(reading(np.array([self.readers]))[0]) + _CALL

    def with_next(self, other: "Span") -> "Span":
        return Span(self.start, other.stop, max(self.readers, other.readers))


def spans(readers_P: np.ndarray) -> list[Span]:
    """Ranges that cover all pages with readers; neighbours are one range where that is cheaper."""
    pages = len(readers_P)
    padded = np.zeros(-(-pages // _GRAIN) * _GRAIN, np.int64)
    padded[:pages] = readers_P
    busiest = padded.reshape(-1, _GRAIN).max(1)
    found: list[Span] = []
    for grain in np.flatnonzero(busiest).tolist():
        span = Span(grain * _GRAIN, min((grain + 1) * _GRAIN, pages), int(busiest[grain]))
        joined = found[-1].with_next(span) if found else span
        if found and joined.cost <= found[-1].cost + span.cost:
            found[-1] = joined
        else:
            found.append(span)
    return found


def plan(table_BN: np.ndarray, count_B: np.ndarray, last_B: np.ndarray, page: int, device: torch.device) -> Plan:
    """For rows that hold `count_B` pages of `table_BN`, the last one written up to and including offset `last_B`.

    `page`: tokens per page.
    """
    used_BN = np.arange(table_BN.shape[1]) < count_B[:, None]
    page_K, row_K = table_BN[used_BN], np.nonzero(used_BN)[0]
    readers_P = np.bincount(page_K)
    base_P = np.zeros(len(readers_P), np.int64)
    ranges, places = spans(readers_P), 0
    for span in ranges:
        count = span.stop - span.start
        base_P[span.start : span.stop] = places + np.arange(count) * span.readers
        places += count * span.readers
    place_K = base_P[page_K] + _ordinal(page_K, readers_P)
    row_U = np.zeros(places, np.int64)
    row_U[place_K] = row_K
    part_BN = np.full(table_BN.shape, places)
    part_BN[used_BN] = place_K
    return Plan(
        chunks=tuple(_chunks(ranges, torch.from_numpy(row_U).to(device))),
        part_BN=torch.from_numpy(part_BN).to(device),
        places=places,
        bias_PC=_bias(table_BN[np.arange(len(count_B)), count_B - 1], last_B, (len(readers_P), page)).to(device),
    )


def _ordinal(page_K: np.ndarray, readers_P: np.ndarray) -> np.ndarray:
    """How many of the same page came before."""
    order_K = np.argsort(page_K, kind="stable")
    first_P = np.cumsum(readers_P) - readers_P
    ordinal_K = np.empty(len(page_K), np.int64)
    ordinal_K[order_K] = np.arange(len(page_K)) - first_P[page_K[order_K]]
    return ordinal_K


def _chunks(ranges: Sequence[Span], row_U: torch.Tensor) -> list[Chunk]:
    chunks, place = [], 0
    for span in ranges:
        count = (span.stop - span.start) * span.readers
        chunks.append(Chunk(span.start, span.stop, span.readers, row_U[place : place + count]))
        place += count
    return chunks


def _bias(page_B: np.ndarray, last_B: np.ndarray, shape: tuple[int, int]) -> torch.Tensor:
    bias_PC = np.zeros(shape, np.float32)
    bias_PC[page_B] = np.where(np.arange(shape[1]) <= last_B[:, None], 0, -np.inf)
    return torch.from_numpy(bias_PC)


class Order:
    """Keeps the books of wasted reads and says when pages should move, and where to."""

    def __init__(self) -> None:
        self._debt = 0.0

    def moves(self, readers_P: np.ndarray, holders_P: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Pages and their new places, if moving pays by now. `readers_P` may end early; `holders_P` covers all."""
        read = readers_P[readers_P > 0]
        needed = float(reading(read).sum()) + _CALL
        self._debt += sum(span.cost for span in spans(readers_P)) - needed
        if self._debt < _GRAIN:
            return None
        source, target = arranged(readers_P, holders_P)
        if not len(source):
            self._debt = 0.0
        if not len(source) or self._debt < _MOVE * len(source):
            return None
        self._debt = 0.0
        return source, target


def arranged(readers_P: np.ndarray, holders_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The fewest moves to this order: pages with readers, the most first; free pages; pages held but not read now."""
    kind_P = np.where(holders_P > 0, 100, 99)
    read = np.flatnonzero(readers_P)
    kind_P[read] = 63 - np.ceil(np.log2(readers_P[read])).astype(np.int64)
    wanted_P = np.sort(kind_P)
    misplaced = np.flatnonzero(kind_P != wanted_P)
    source = misplaced[np.argsort(kind_P[misplaced], kind="stable")]
    return source, misplaced
