"""From rows in slots to forward passes: the prefill of what slots lack, and one decoding step.

Shapes: B rows, Q new tokens per row, N pages per row, L new tokens that are real, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch

from arpo.engine.kv import PAGE, Layout
from arpo.engine.paging import Order, plan
from arpo.engine.slots import Slots, pages_for
from arpo.engine.stock import Forward

_PADDING = 32
"""Padding tokens that are cheaper than one more pass."""


class Passes:
    """Runs a model's passes for slots."""

    def __init__(self, forward: Forward, slots: Slots) -> None:
        self._forward = forward
        self._slots = slots
        self._order = Order()

    def prefill(self, lacking: Sequence[tuple[int, int]]) -> None:
        """Compute the next `count` tokens of each `(slot, count)`, those of like count in one padded pass."""
        for batch in _alike(lacking):
            self._prefill(np.array([slot for slot, _ in batch]), np.array([count for _, count in batch]))

    def decode(self, slots_B: np.ndarray, last_B: np.ndarray) -> torch.Tensor:
        """Feed one token to each slot, whose pages have room for it: logits `[B, V]` of the token after it."""
        slots = self._slots
        place_B = slots.length[slots_B]
        count_B = place_B // PAGE + 1
        self._tidy(slots_B, count_B)
        table_BN = slots.table[slots_B, : count_B.max()]
        offset_B = place_B % PAGE
        layout = Layout(
            page_L=self._tensor(table_BN[np.arange(len(slots_B)), count_B - 1]),
            offset_L=self._tensor(offset_B),
            real_L=None,
            table_BN=self._tensor(table_BN),
            position_BQ=self._tensor(place_B[:, None]),
            plan=plan(table_BN, count_B, offset_B, PAGE, slots.store.device),
        )
        logits_BV = self._forward.logits(self._tensor(last_B[:, None]), layout.position_BQ, layout)
        slots.tokens[slots_B, place_B] = last_B
        slots.length[slots_B] = slots.planned[slots_B] = place_B + 1
        return logits_BV

    def _tidy(self, slots_B: np.ndarray, count_B: np.ndarray) -> None:
        """Move pages if the step would read much that nobody needs."""
        table_BN = self._slots.table[slots_B, : count_B.max()]
        readers_P = np.bincount(table_BN[np.arange(table_BN.shape[1]) < count_B[:, None]])
        if (moves := self._order.moves(readers_P, self._slots.store.holders)) is not None:
            self._slots.renumber(*moves)

    def _prefill(self, slots_B: np.ndarray, lacking_B: np.ndarray) -> None:
        slots = self._slots
        start_B = slots.length[slots_B]
        step_Q = np.arange(lacking_B.max())
        real_BQ = step_Q < lacking_B[:, None]
        position_BQ = np.where(real_BQ, start_B[:, None] + step_Q, 0)
        ids_BQ = np.where(real_BQ, slots.tokens[slots_B[:, None], position_BQ], 0)
        table_BN = slots.table[slots_B, : pages_for(int((start_B + lacking_B).max()))]
        page_BQ = np.take_along_axis(table_BN, position_BQ // PAGE, 1)
        layout = Layout(
            page_L=self._tensor(page_BQ[real_BQ]),
            offset_L=self._tensor(position_BQ[real_BQ] % PAGE),
            real_L=None if real_BQ.all() else self._tensor(np.flatnonzero(real_BQ)),
            table_BN=self._tensor(table_BN),
            position_BQ=self._tensor(position_BQ),
        )
        self._forward.extend(self._tensor(ids_BQ), layout.position_BQ, layout)
        slots.length[slots_B] += lacking_B

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False)).to(self._slots.store.device)


def _alike(lacking: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Batches without much padding, the long ones first."""
    batches: list[list[tuple[int, int]]] = []
    real = 0
    for slot, count in sorted(lacking, key=lambda item: -item[1]):
        padded = batches[-1][0][1] * (len(batches[-1]) + 1) if batches else 0
        if batches and padded <= 2 * (real + count) + _PADDING:
            batches[-1].append((slot, count))
        else:
            batches.append([(slot, count)])
            real = 0
        real += count
    return batches
