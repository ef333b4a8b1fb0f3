"""Continuous batching, synchronous part: which sequences run, in which slots, and one step of all of them.

A row is a sequence that waits, runs, or was put back to wait for room. Its slot covers all of its tokens but the last
one; a step feeds that one and samples the next. So a new row needs only a *prefill* of what its slot lacks, never
logits from it, and every row, fresh or old, takes its next token in the same single decoding pass.

A new row looks for the longest prefix that any slot holds. A parked slot that holds nothing else is continued in place;
otherwise the row gets a slot that holds the same pages (a fork). If a running prefill is about to compute more of the
prefix than is there now, the row waits for it: sixteen rollouts of one prompt prefill it once.

Every step decodes all rows that are ready and computes at most `prefill_tokens` of prefix, oldest row first, so neither
kind of work can starve the other.

Room is bounded by `max_cached_tokens`. Short of room, parked slots go first, least recently used; then the row that
started last goes back to the queue and is computed again later. Nothing fails for want of cache.

Shapes: B rows, V vocabulary.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from arpo.engine.kv import PAGE
from arpo.engine.passes import Passes
from arpo.engine.rows import Row
from arpo.engine.sampling import draw
from arpo.engine.slots import Slots, pages_for
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Stopper
from arpo.seeds import uniforms
from arpo.tree import Finish


class Batcher:
    """Rows in slots. `step` is one admission, some prefill and one decoding pass."""

    def __init__(
        self,
        passes: Passes,
        slots: Slots,
        stopper: Stopper,
        *,
        max_batch: int,
        prefill_tokens: int,
        prefix_reuse: bool,
        entropy: bool,
    ) -> None:
        self.slots = slots
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.stats = EngineStats()
        self._passes = passes
        self._stopper = stopper
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._reuse = prefix_reuse
        self._entropy = entropy

    def step(self, *, admit: bool) -> list[tuple[Row, Finish]]:
        """Advance every running row by one token or one piece of its prefill; the rows that are over."""
        if admit:
            self._admit()
        self._prefill()
        ready = [row for row in self.running if self.slots.length[row.slot] == len(row.tokens) - 1]
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
        self.slots.clear()
        return rows

    # --- admission -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start the waiting rows that there is room for, in order; those that wait for a prefill stay."""
        kept: list[Row] = []
        while self.waiting and len(self.running) < self._max_batch:
            row = self.waiting[0]
            tokens_T = np.array(row.tokens[:-1], np.int32)
            found, shared, coming = self.slots.match(tokens_T) if self._reuse else (-1, 0, 0)
            if coming > shared:
                kept.append(self.waiting.popleft())
            elif self._start(row, tokens_T, found, shared):
                self.waiting.popleft()
            else:
                break
        self.waiting.extendleft(reversed(kept))

    def _start(self, row: Row, tokens_T: np.ndarray, found: int, shared: int) -> bool:
        """Give the row a slot that shares the first `shared` tokens of slot `found`; False if there is no room.

        Besides its own pages one must be free for each running row, or the newcomer would soon be put back.
        """
        slots = self.slots
        in_place = shared > 0 and not slots.running[found] and slots.length[found] == shared
        held = int(slots.held[found]) if in_place else shared // PAGE
        if not self._make_room(pages_for(len(row.tokens)) - held + len(self.running), found if shared else -1):
            if in_place or not shared or slots.running[found]:
                return False
            # The parked sequence gives way from its end; what the row shares with it stays, up to part of a page.
            kept = slots.cut(found, shared)
            return self._start(row, tokens_T, found if kept else -1, kept)
        if shared:
            slots.touch(found)
        row.slot = found if in_place else slots.fork(found, shared)
        slots.occupy(row.slot, tokens_T)
        self.running.append(row)
        self._count(row, shared)
        return True

    def _count(self, row: Row, shared: int) -> None:
        self.stats.prefilled_tokens += len(row.tokens) - shared
        if not row.counted:
            self.stats.calls += 1
            self.stats.prefix_tokens += row.start
            self.stats.reused_tokens += shared
            row.counted = True

    # --- room ----------------------------------------------------------------------------------------------------

    def _make_room(self, pages: int, keep: int = -1) -> bool:
        """Let `pages` pages be free, parked slots but `keep` giving way; False if that is not enough."""
        while self.slots.store.free < pages:
            slot = self.slots.stalest(keep)
            if slot is None:
                return False
            self.slots.drop(slot)
        return True

    def _reserve(self, ready: list[Row]) -> list[Row]:
        """Room for one more token in every row; the youngest rows go back to the queue if there is none."""
        slots = self.slots
        while True:
            full = [row for row in ready if len(row.tokens) > slots.held[row.slot] * PAGE]
            if self._make_room(len(full)):
                break
            row = self.running[-1]
            self._leave(row)
            self.waiting.appendleft(row)
            ready = [other for other in ready if other is not row]
        for row in full:
            slots.extend(row.slot, len(row.tokens))
        return ready

    def _leave(self, row: Row) -> None:
        self.running.remove(row)
        self.slots.park(row.slot)
        row.slot = -1

    # --- passes --------------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Compute what the oldest rows lack, as far as a step's share goes."""
        left = self._prefill_tokens
        lacking: list[tuple[int, int]] = []
        lengths = self.slots.length[[row.slot for row in self.running]].tolist()
        for row, length in zip(self.running, lengths, strict=True):
            count = min(len(row.tokens) - 1 - length, left)
            if count:
                lacking.append((row.slot, count))
                left -= count
        if lacking:
            self._passes.prefill(lacking)
            self.stats.computed_tokens += self._prefill_tokens - left

    def _decode(self, ready: list[Row]) -> list[tuple[Row, Finish]]:
        ready = self._reserve(ready)
        slots_B = np.array([row.slot for row in ready])
        logits_BV = self._passes.decode(slots_B, np.array([row.tokens[-1] for row in ready], np.int64))
        self.stats.computed_tokens += len(ready)
        return self._append(ready, logits_BV)

    def _append(self, ready: Sequence[Row], logits_BV: torch.Tensor) -> list[tuple[Row, Finish]]:
        """Sample a token for every row; take out the rows that are over."""
        seeds_B = np.array([row.seed for row in ready], np.uint64)
        drawn = draw(
            logits_BV,
            np.array([row.params.temperature for row in ready]),
            np.array([row.params.top_p for row in ready]),
            uniforms(seeds_B, np.array([len(row.logprobs) for row in ready])),
            entropy=self._entropy,
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
