"""Keys and values of many sequences in pages of a fixed number of tokens, and how a forward pass reaches them.

A sequence is a list of pages (`arpo.engine.slots`). A page knows how many sequences hold it, so branches hold the pages
of what they share, and memory is that of the unique tokens, up to a page per sequence. A page that several hold is
always full, and nobody writes to it: a fork in the middle of a page takes a page of its own and copies the few tokens
before the fork.

The pages of a layer are one tensor. A decoding step reads ranges of it in place (`arpo.engine.paging`), so pages that
are read together are kept together; `permute` moves them.

Shapes: P pages, H key/value heads, C tokens per page, D head size; B rows of a batch, Q new tokens per row, N pages per
row, L the new tokens that are real.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from arpo.engine.paging import Plan

PAGE = 32
"""Tokens per page. Larger ones waste memory at every fork, smaller ones cost more small operations per step."""
_FIRST_PAGES = 128


@dataclass(frozen=True, eq=False)
class Layout:
    """Where a batch writes and what it reads.

    `page_L`, `offset_L`: where the new keys and values go. `real_L`: which of the B*Q positions those are, None if all.
    `table_BN`: the rows' pages, padded with any page. `position_BQ`: the last position that each query sees. `plan`:
    for a decoding step, the same by pages.
    """

    page_L: torch.Tensor
    offset_L: torch.Tensor
    real_L: torch.Tensor | None
    table_BN: torch.Tensor
    position_BQ: torch.Tensor
    plan: Plan | None = None
    _flat: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Columns that `PageStore.gather` returns."""
        return self.table_BN.shape[1] * PAGE

    @cached_property
    def mask(self) -> torch.Tensor:
        """Bool `[B, 1, Q, width]`, True where a query may look."""
        column = torch.arange(self.width, device=self.position_BQ.device)
        return column <= self.position_BQ[:, None, :, None]

    def rows(self, heads: int) -> torch.Tensor:
        """Index of the new tokens, head by head, in a layer's pages seen as `[P * H * C, D]`: `[L * H]`."""
        if heads not in self._flat:
            head = torch.arange(heads, device=self.page_L.device)
            self._flat[heads] = ((self.page_L[:, None] * heads + head) * PAGE + self.offset_L[:, None]).flatten()
        return self._flat[heads]


class PageStore:
    """The pages. `holders[p]`: sequences that hold page p; 0 means free. At most `limit` pages are ever made.

    `dtype`: of the model's activations.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, limit: int) -> None:
        self.device, self.dtype = device, dtype
        self.limit = limit
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.keys.clear()
        self.values.clear()
        self.holders = np.zeros(min(_FIRST_PAGES, self.limit), np.int32)

    @property
    def pages(self) -> int:
        """Pages made so far."""
        return len(self.holders)

    @property
    def free(self) -> int:
        """Pages that can be had without evicting anything."""
        return int((self.holders == 0).sum()) + self.limit - self.pages

    def take(self, count: int) -> np.ndarray:
        """The lowest `count` free pages, held once. Raises RuntimeError if there are not so many."""
        if self.free < count:
            raise RuntimeError(f"{count} pages asked for, {self.free} free; make room first")
        found = np.flatnonzero(self.holders == 0)[:count]
        while len(found) < count:
            self._grow()
            found = np.flatnonzero(self.holders == 0)[:count]
        self.holders[found] = 1
        return found

    def hold(self, pages: np.ndarray) -> None:
        """One more sequence holds these pages."""
        self.holders[pages] += 1

    def release(self, pages: np.ndarray) -> None:
        """One sequence less holds these pages."""
        self.holders[pages] -= 1

    def copy(self, source: int, target: int) -> None:
        """Copy one page."""
        for layer in (*self.keys, *self.values):
            layer[target] = layer[source]

    def permute(self, source: np.ndarray, target: np.ndarray) -> None:
        """Move page `source[i]` to `target[i]`; both name the same pages, in another order."""
        old, new = torch.from_numpy(source).to(self.device), torch.from_numpy(target).to(self.device)
        for layer in (*self.keys, *self.values):
            layer.index_copy_(0, new, layer.index_select(0, old))
        self.holders[target] = self.holders[source]

    def write(self, layer: int, k_BHQD: torch.Tensor, v_BHQD: torch.Tensor, layout: Layout) -> None:
        """Store a batch's new keys and values."""
        if layer == len(self.keys):
            self.keys.append(self._empty(k_BHQD))
            self.values.append(self._empty(v_BHQD))
        for pages, new in ((self.keys[layer], k_BHQD), (self.values[layer], v_BHQD)):
            new_LHD = new.transpose(1, 2).flatten(0, 1)
            if layout.real_L is not None:
                new_LHD = new_LHD.index_select(0, layout.real_L)
            pages.view(-1, pages.shape[-1]).index_copy_(0, layout.rows(pages.shape[1]), new_LHD.flatten(0, 1))

    def gather(self, layer: int, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[B, H, width, D]` of whole rows, copied together."""
        return _gathered(self.keys[layer], layout.table_BN), _gathered(self.values[layer], layout.table_BN)

    def _grow(self) -> None:
        more = min(self.pages, self.limit - self.pages)
        for layers in (self.keys, self.values):
            for index, old in enumerate(layers):
                layers[index] = torch.cat([old, old.new_zeros(more, *old.shape[1:])])
        self.holders = np.concatenate([self.holders, np.zeros(more, np.int32)])

    def _empty(self, like_BHQD: torch.Tensor) -> torch.Tensor:
        """Zeros, not garbage: a masked NaN is still a NaN."""
        heads, size = like_BHQD.shape[1], like_BHQD.shape[3]
        return torch.zeros(self.pages, heads, PAGE, size, dtype=like_BHQD.dtype, device=self.device)


def _gathered(pages_PHCD: torch.Tensor, table_BN: torch.Tensor) -> torch.Tensor:
    rows, count = table_BN.shape
    _, heads, _, size = pages_PHCD.shape
    found = pages_PHCD.index_select(0, table_BN.flatten()).view(rows, count, heads, PAGE, size)
    return found.transpose(1, 2).reshape(rows, heads, count * PAGE, size)


class _PageLayer(CacheLayerMixin):
    """One layer of `PageCache`, as transformers wants to see it: full attention over `layout.width` columns."""

    is_sliding = False

    def __init__(self, store: PageStore, index: int, layout: Layout, in_place: bool) -> None:
        super().__init__()
        self._store, self._index, self._layout, self._in_place = store, index, layout, in_place

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The store allocates when it is first written to."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new rows to their pages and return all that the batch may look at (as it came, if `in_place`)."""
        self._store.write(self._index, key_states, value_states, self._layout)
        if self._in_place:
            return key_states, value_states
        return self._store.gather(self._index, self._layout)

    def get_seq_length(self) -> int:
        return self._layout.width - self._layout.position_BQ.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._layout.width, 0

    def get_max_length(self) -> int:
        return -1


class PageCache(Cache):
    """A transformers cache for one forward pass over the rows of a `Layout`.

    `in_place`: the attention function reads the pages itself, so nothing is gathered.
    """

    def __init__(self, store: PageStore, layers: int, layout: Layout, in_place: bool = False) -> None:
        super().__init__(layers=[_PageLayer(store, index, layout, in_place) for index in range(layers)])
