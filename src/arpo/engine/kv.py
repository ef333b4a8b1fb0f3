"""Keys and values of many sequences, one slot each, and what is known about every slot.

A slot holds the KV rows of one token sequence. A sequence that has ended leaves its slot parked, token ids and all, so
that a continuation (after a tool result, or on a branch) finds its prefix by comparing tokens: no handles to pass, no
reference counts to leak. Slots are rows of one rectangle per layer, so the running sequences are a slice of it and a
decoding step reads them without gathering; the price is padding to the longest sequence.

The last column is scratch: padding positions of a batch write there, never into a sequence.

Shapes: S slots, H key/value heads, T columns, D head size; B rows of a batch, Q new tokens per row.
"""

from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a batch reads and writes. `slots`: a slice, read in place, or indices `[B]`, gathered.

    `row_BQ`, `column_BQ`: where the new keys and values go. `width`: columns that are read. `mask`: bool
    `[B, 1, Q, width]`, True where a query may look.
    """

    slots: slice | torch.Tensor
    row_BQ: torch.Tensor
    column_BQ: torch.Tensor
    width: int
    mask: torch.Tensor


class SlotStore:
    """The rectangle of slots. `length[s]`: KV rows that slot s holds, of the tokens `tokens[s, :length[s]]`.

    `planned[s]` >= `length[s]`: tokens that the slot's sequence will hold once its prefill is through. `running[s]`:
    a sequence is working in it; `touched[s]`: when it was last used, for eviction.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.clear()

    def clear(self) -> None:
        """Forget every sequence and give the memory back."""
        self.keys.clear()
        self.values.clear()
        self.slots = self.columns = 0
        self.tokens = np.zeros((0, 0), np.int32)
        self.length = np.zeros(0, np.int64)
        self.planned = np.zeros(0, np.int64)
        self.touched = np.zeros(0, np.int64)
        self.running = np.zeros(0, bool)
        self._clock = 0

    def forget(self) -> None:
        """Forget every sequence but keep the memory, for new weights."""
        self.length[:] = self.planned[:] = 0

    # --- slots ---------------------------------------------------------------------------------------------------

    def match(self, tokens: np.ndarray) -> tuple[int, int, int]:
        """The slot that shares the longest prefix with `tokens`, its length, and the length that is still to come.

        The third figure counts what running prefills will have added. Among equals a parked slot that can be
        continued in place comes first. (-1, 0, 0) without slots.
        """
        if not self.slots or not len(tokens):
            return -1, 0, 0
        width = min(len(tokens), self.columns)
        equal = self.tokens[:, :width] == tokens[:width]
        common = np.where(equal.all(1), width, equal.argmin(1))
        shared = np.minimum(common, self.length)
        in_place = ~self.running & (self.length == shared)
        best = int(np.argmax(2 * shared + in_place))
        return best, int(shared[best]), int(np.minimum(common, self.planned).max())

    def occupy(self, slot: int, tokens: np.ndarray, computed: int) -> None:
        """Slot `slot` now works for a sequence whose first `computed` KV rows it holds."""
        self.running[slot] = True
        self.length[slot], self.planned[slot] = computed, len(tokens)
        self.tokens[slot, : len(tokens)] = tokens
        self.touch(slot)

    def park(self, slot: int) -> None:
        """The sequence has left; its KV rows stay until the slot is needed."""
        self.running[slot] = False
        self.planned[slot] = self.length[slot]
        self.touch(slot)

    def touch(self, slot: int) -> None:
        """Mark as just used."""
        self._clock += 1
        self.touched[slot] = self._clock

    def free(self) -> int | None:
        """The lowest slot that holds nothing, or None."""
        empty = ~self.running & (self.length == 0)
        return int(empty.argmax()) if empty.any() else None

    def stalest(self) -> int | None:
        """The parked slot that was used least recently, or None if all are running."""
        parked = np.flatnonzero(~self.running)
        return int(parked[self.touched[parked].argmin()]) if len(parked) else None

    # --- memory --------------------------------------------------------------------------------------------------

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` KV rows of a slot: a fork."""
        for layer in (*self.keys, *self.values):
            layer[target, :, :length] = layer[source, :, :length]

    def swap(self, these: np.ndarray, those: np.ndarray) -> None:
        """Exchange the slots `these[i]` and `those[i]`, all different."""
        a, b = np.concatenate([these, those]), np.concatenate([those, these])
        width = int(self.length[a].max())
        to, source = torch.from_numpy(a).to(self.device), torch.from_numpy(b).to(self.device)
        for layer in (*self.keys, *self.values):
            layer[to, :, :width] = layer[:, :, :width].index_select(0, source)
        for facts in (self.tokens, self.length, self.planned, self.touched, self.running):
            facts[a] = facts[b]

    def resize(self, order: np.ndarray, slots: int, columns: int) -> None:
        """Keep the slots `order`, in that order, in a rectangle of `slots` by `columns`; longer ones are cut."""
        kept = torch.from_numpy(order).to(self.device)
        for layers in (self.keys, self.values):
            for index, old in enumerate(layers):
                layers[index] = _moved(old, kept, slots, columns)
        tokens = np.zeros((slots, columns), np.int32)
        width = min(columns, self.columns)
        tokens[: len(order), :width] = self.tokens[order, :width]
        self.tokens = tokens
        for name in ("length", "planned", "touched", "running"):
            old_facts = getattr(self, name)
            facts = np.zeros(slots, old_facts.dtype)
            facts[: len(order)] = old_facts[order]
            setattr(self, name, facts)
        self.length, self.planned = np.minimum(self.length, columns - 1), np.minimum(self.planned, columns - 1)
        self.slots, self.columns = slots, columns

    def write(self, layer: int, k_BHQD: torch.Tensor, v_BHQD: torch.Tensor, layout: Layout) -> None:
        """Store a batch's new keys and values."""
        if layer == len(self.keys):
            self.keys.append(self._empty(k_BHQD))
            self.values.append(self._empty(v_BHQD))
        self.keys[layer][layout.row_BQ, :, layout.column_BQ] = k_BHQD.transpose(1, 2)
        self.values[layer][layout.row_BQ, :, layout.column_BQ] = v_BHQD.transpose(1, 2)

    def read(self, layer: int, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[B, H, width, D]` that a batch may look at: views where `layout.slots` is a slice."""
        return self.keys[layer][layout.slots, :, : layout.width], self.values[layer][layout.slots, :, : layout.width]

    def _empty(self, like_BHQD: torch.Tensor) -> torch.Tensor:
        """Zeros, not garbage: a masked NaN is still a NaN."""
        heads, size = like_BHQD.shape[1], like_BHQD.shape[3]
        return torch.zeros(self.slots, heads, self.columns, size, dtype=like_BHQD.dtype, device=self.device)


def _moved(old: torch.Tensor, kept: torch.Tensor, slots: int, columns: int) -> torch.Tensor:
    new = old.new_zeros(slots, old.shape[1], columns, old.shape[3])
    width = min(columns, old.shape[2])
    new[: len(kept), :, :width] = old[:, :, :width].index_select(0, kept)
    return new


class _SlotLayer(CacheLayerMixin):
    """One layer of `SlotCache`, as transformers wants to see it: full attention over `layout.width` columns."""

    is_sliding = False

    def __init__(self, store: SlotStore, index: int, layout: Layout) -> None:
        super().__init__()
        self._store, self._index, self._layout = store, index, layout

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The store allocates when it is first written to."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new rows to their slots and return all that the batch may look at."""
        self._store.write(self._index, key_states, value_states, self._layout)
        return self._store.read(self._index, self._layout)

    def get_seq_length(self) -> int:
        return self._layout.width - self._layout.row_BQ.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._layout.width, 0

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):
    """A transformers cache for one forward pass over the rows of a `Layout`."""

    def __init__(self, store: SlotStore, layers: int, layout: Layout) -> None:
        super().__init__(layers=[_SlotLayer(store, index, layout) for index in range(layers)])
