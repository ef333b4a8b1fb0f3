"""Continuous batching, synchronous part: which sequences run, in which slots, and one step of all of them.

A row is a sequence that waits, runs, or was put back to wait for room. Its KV rows cover all of its tokens but the last
one; a step feeds that one and samples the next. So a new row needs only a *prefill* of what its slot lacks, never
logits from it, and every row, fresh or old, takes its next token in the same single decoding pass.

A new row looks for the longest prefix that any slot holds. A parked slot that holds nothing else is continued in place;
otherwise the shared KV rows are copied (a fork). If a running prefill is about to compute much more of the prefix than
is there now, the row waits a step for it: sixteen rollouts of one prompt prefill it once.

Room is bounded by `max_cached_tokens`. Short of room, parked slots go first, least recently used; then the row that
started last goes back to the queue and is computed again later. Nothing fails for want of cache.

Shapes: B rows, Q new tokens per row, V vocabulary.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from arpo.engine.base import SampleParams
from arpo.engine.kv import Layout, SlotStore
from arpo.engine.sampling import draw
from arpo.engine.stats import EngineStats
from arpo.engine.stock import Forward
from arpo.engine.stopping import Stopper
from arpo.seeds import uniforms
from arpo.tree import Finish, Segment, Source

_WORTH_WAITING = 16
"""Tokens that a running prefill must be about to add before a row waits a step for them."""
_DENSE = 0.8
"""Share of running slots in the decoded slice below which it is compacted."""
_FIRST_SLOTS = 16
_GRAIN = 32
"""Columns are allocated in multiples of this."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence to be continued. `tokens`: prefix and sampled tokens; the prefix has `start` of them."""

    tokens: list[int]
    start: int
    params: SampleParams
    seed: int
    limit: int
    """Length at which the budget or the context is used up."""
    ends: frozenset[int]
    halting: frozenset[int]
    """Ids after which the row may be over: its end tokens, and candidates of its stop strings."""
    future: asyncio.Future[Segment]
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    slot: int = -1
    counted: bool = False

    def segment(self, finish: Finish, version: int) -> Segment:
        """What was sampled."""
        return Segment(
            tokens=np.array(self.tokens[self.start :], np.int32),
            source=Source.POLICY,
            logprobs=np.array(self.logprobs, np.float32),
            entropies=np.array(self.entropies, np.float32),
            finish=finish,
            version=version,
        )


class Batcher:
    """Rows in slots. `step` is one admission, at most one prefill pass and one decoding pass."""

    def __init__(
        self,
        forward: Forward,
        store: SlotStore,
        stopper: Stopper,
        *,
        max_batch: int,
        max_cached_tokens: int,
        prefill_tokens: int,
        prefix_reuse: bool,
    ) -> None:
        self.forward = forward
        self.store = store
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.stats = EngineStats()
        self._stopper = stopper
        self._max_batch = max_batch
        self._budget = max_cached_tokens
        self._prefill_tokens = prefill_tokens
        self._reuse = prefix_reuse

    def step(self, *, admit: bool) -> list[tuple[Row, Finish]]:
        """Advance every running row by one token or one piece of its prefill; the rows that are over."""
        if admit:
            self._admit()
        self._prefill()
        ready = [row for row in self.running if self.store.length[row.slot] == len(row.tokens) - 1]
        return self._decode(ready) if ready else []

    def remove(self, row: Row) -> None:
        """Forget a row whose caller has gone."""
        if row in self.running:
            self._leave(row)
        elif row in self.waiting:
            self.waiting.remove(row)

    def reset(self) -> list[Row]:
        """Drop all rows and everything cached; the rows that were dropped."""
        rows = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        self.store.clear()
        return rows

    # --- admission -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start the waiting rows that there is room for, in order; those that wait for a prefill stay."""
        kept: list[Row] = []
        while self.waiting and len(self.running) < self._max_batch:
            row = self.waiting[0]
            if not self._make_room(len(row.tokens), len(self.running) + 1):
                break
            self.waiting.popleft()
            tokens = np.array(row.tokens[:-1], np.int32)
            found, shared, coming = self.store.match(tokens) if self._reuse else (-1, 0, 0)
            if coming - shared >= _WORTH_WAITING:
                kept.append(row)
            else:
                self._start(row, tokens, found, shared)
        self.waiting.extendleft(reversed(kept))

    def _start(self, row: Row, tokens: np.ndarray, found: int, shared: int) -> None:
        store = self.store
        if shared and not store.running[found] and store.length[found] == shared:
            slot = found
        else:
            slot = self._take(found if shared else None)
            if shared and slot != found:
                store.copy(found, slot, shared)
        store.occupy(slot, tokens, shared)
        row.slot = slot
        self.running.append(row)
        self._count(row, shared)

    def _take(self, source: int | None) -> int:
        """A slot to write in: an empty one, a new one, or the stalest parked one (not `source` if another is there)."""
        store = self.store
        slot = store.free()
        if slot is None and self._grow_slots():
            slot = store.free()
        if slot is None:
            if source is not None:
                store.touch(source)
            slot = store.stalest()
        if slot is None:
            raise RuntimeError("no slot for a row that _make_room made room for")
        return slot

    def _grow_slots(self) -> bool:
        limit = min(2 * self._max_batch, self._budget // self.store.columns)
        slots = min(limit, 2 * self.store.slots)
        if slots <= self.store.slots:
            return False
        self.store.resize(np.arange(self.store.slots), slots, self.store.columns)
        return True

    def _count(self, row: Row, shared: int) -> None:
        self.stats.prefilled_tokens += len(row.tokens) - shared
        if not row.counted:
            self.stats.calls += 1
            self.stats.prefix_tokens += row.start
            self.stats.reused_tokens += shared
            row.counted = True

    # --- room ----------------------------------------------------------------------------------------------------

    def _make_room(self, tokens: int, rows: int) -> bool:
        """Let `rows` sequences of up to `tokens` tokens fit, parked slots giving way; False if they cannot."""
        store = self.store
        columns = tokens + 1
        if columns <= store.columns and rows <= store.slots:
            return True
        columns = max([columns, *(len(row.tokens) + 1 for row in self.running)])
        slots = store.slots if rows <= store.slots else max(2 * store.slots, _FIRST_SLOTS)
        generous = store.columns if columns <= store.columns else max(columns, store.columns * 3 // 2)
        for width in (generous, columns):
            width = min(-(-width // _GRAIN) * _GRAIN, self._budget)
            limit = min(2 * self._max_batch, self._budget // width)
            if limit >= rows:
                self._rebuild(width, max(rows, min(limit, slots)))
                return True
        return False

    def _rebuild(self, columns: int, slots: int) -> None:
        """Change the rectangle; the running slots stay, and of the parked ones as many as fit, the latest used."""
        store = self.store
        worth = np.where(store.running, np.iinfo(np.int64).max, np.where(store.length > 0, store.touched, -1))
        order = np.sort(np.argsort(-worth, kind="stable")[:slots])
        place = {int(old): new for new, old in enumerate(order)}
        store.resize(order, slots, columns)
        for row in self.running:
            row.slot = place[row.slot]

    def _reserve(self, ready: Sequence[Row]) -> None:
        """Room for one more token in every row; the youngest rows go back to the queue if there is none."""
        while not self._make_room(max(len(row.tokens) for row in ready if row.slot >= 0), len(self.running)):
            row = self.running[-1]
            self._leave(row)
            self.waiting.appendleft(row)

    def _leave(self, row: Row) -> None:
        self.running.remove(row)
        self.store.park(row.slot)
        row.slot = -1

    # --- passes --------------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """One padded pass over what the oldest rows lack."""
        length = self.store.length
        batch: list[tuple[Row, int]] = []
        widest = 0
        for row in self.running:
            lacking = min(len(row.tokens) - 1 - int(length[row.slot]), self._prefill_tokens)
            if lacking and max(widest, lacking) * (len(batch) + 1) <= self._prefill_tokens:
                batch.append((row, lacking))
                widest = max(widest, lacking)
        if batch:
            self._prefill_pass(batch, widest)

    def _prefill_pass(self, batch: Sequence[tuple[Row, int]], widest: int) -> None:
        store = self.store
        slots = np.array([row.slot for row, _ in batch])
        lacking = np.array([count for _, count in batch])
        step_Q = np.arange(widest)
        real_BQ = step_Q < lacking[:, None]
        position_BQ = np.where(real_BQ, store.length[slots][:, None] + step_Q, 0)
        ids_BQ = np.where(real_BQ, store.tokens[slots[:, None], position_BQ], 0)
        column_BQ = np.where(real_BQ, position_BQ, store.columns - 1)
        layout = self._layout(self._tensor(slots), slots, position_BQ, column_BQ)
        self.forward.extend(self._tensor(ids_BQ), self._tensor(position_BQ), layout)
        store.length[slots] += lacking

    def _decode(self, ready: Sequence[Row]) -> list[tuple[Row, Finish]]:
        self._reserve(ready)
        ready = [row for row in ready if row.slot >= 0]
        self._compact(ready)
        ready.sort(key=lambda row: row.slot)
        store = self.store
        slots = np.array([row.slot for row in ready])
        last = np.array([row.tokens[-1] for row in ready], np.int64)
        place = np.array([len(row.tokens) - 1 for row in ready])
        span = int(slots[-1]) + 1
        ids, position, column = np.zeros(span, np.int64), np.zeros(span, np.int64), np.full(span, store.columns - 1)
        ids[slots], position[slots], column[slots] = last, place, place
        layout = self._layout(slice(0, span), np.arange(span), position[:, None], column[:, None])
        logits = self.forward.logits(self._tensor(ids[:, None]), self._tensor(position[:, None]), layout)
        store.tokens[slots, place] = last
        store.length[slots] = store.planned[slots] = place + 1
        if len(ready) < span:
            logits = logits[self._tensor(slots)]
        return self._append(ready, logits)

    def _append(self, ready: Sequence[Row], logits_BV: torch.Tensor) -> list[tuple[Row, Finish]]:
        """Sample a token for every row; take out the rows that are over."""
        seeds = np.array([row.seed for row in ready], np.uint64)
        drawn = draw(
            logits_BV,
            np.array([row.params.temperature for row in ready]),
            np.array([row.params.top_p for row in ready]),
            uniforms(seeds, np.array([len(row.logprobs) for row in ready])),
        )
        self.stats.sampled_tokens += len(ready)
        over: list[tuple[Row, Finish]] = []
        tokens = drawn[0].astype(np.int64).tolist()
        for row, token, logprob, entropy in zip(ready, tokens, drawn[1].tolist(), drawn[2].tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.entropies.append(entropy)
            if token in row.halting or len(row.tokens) >= row.limit:
                finish = self._finish(row, token)
                if finish is not None:
                    over.append((row, finish))
        for row, _ in over:
            self._leave(row)
        return over

    def _finish(self, row: Row, token: int) -> Finish | None:
        if token in row.ends:
            return Finish.STOP
        if token in row.halting and self._stopper.ended(row.tokens, row.params.stop):
            return Finish.CALL
        return Finish.LENGTH if len(row.tokens) >= row.limit else None

    def _compact(self, ready: Sequence[Row]) -> None:
        """Move running rows down into the gaps when the gaps cost more than the move."""
        store = self.store
        slots = np.sort([row.slot for row in ready])
        count = len(slots)
        if count >= _DENSE * (slots[-1] + 1):
            return
        high = slots[slots >= count]
        low = np.setdiff1d(np.arange(count), slots, assume_unique=True)
        store.swap(low, high)
        moved = dict(zip([*low.tolist(), *high.tolist()], [*high.tolist(), *low.tolist()], strict=True))
        for row in self.running:
            row.slot = moved.get(row.slot, row.slot)

    def _layout(
        self, slots: slice | torch.Tensor, row_B: np.ndarray, position_BQ: np.ndarray, column_BQ: np.ndarray
    ) -> Layout:
        width = int(position_BQ.max()) + 1
        seen = self._tensor(position_BQ)[:, None, :, None]
        return Layout(
            slots=slots,
            row_BQ=self._tensor(row_B[:, None]),
            column_BQ=self._tensor(column_BQ),
            width=width,
            mask=torch.arange(width, device=self.store.device) <= seen,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False)).to(self.store.device)


def frozen(ids: Iterable[int]) -> frozenset[int]:
    """A set of ids as plain ints, which hash faster than numpy's."""
    return frozenset(int(token) for token in ids)
