"""Which token sequences are cached: their tokens, their pages, and who is the longest lost relative of a new one.

A slot is the record of one sequence. A sequence that has ended leaves its slot parked, so that a continuation (after a
tool result, or on a branch) finds its prefix by comparing tokens: there are no handles to pass and none to leak.

Shapes: S slots, T tokens, N pages per slot.
"""

import numpy as np

from arpo.engine.kv import PAGE, PageStore

_FIRST_SLOTS = 16
_GRAIN = 64
"""Tokens by which the records are widened."""


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE)


class Slots:
    """Records of sequences and their holds on pages. At most `limit` sequences.

    `length[s]`: tokens of `tokens[s]` whose keys and values are there; `planned[s]` >= `length[s]`: what it will be
    once the running prefill is through; `held[s]`: pages of `table[s]`; `running[s]`: a row is working on it;
    `touched[s]`: when it was last used. A slot that is neither running nor holds pages is empty.
    """

    def __init__(self, store: PageStore, limit: int) -> None:
        self.store = store
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget every sequence and give the memory back."""
        self.store.clear()
        self.tokens = np.zeros((0, 0), np.int32)
        self.table = np.zeros((0, 0), np.int64)
        self.length = np.zeros(0, np.int64)
        self.planned = np.zeros(0, np.int64)
        self.held = np.zeros(0, np.int64)
        self.touched = np.zeros(0, np.int64)
        self.running = np.zeros(0, bool)
        self._clock = 0

    def forget(self) -> None:
        """Forget every sequence but keep the memory, for new weights."""
        for slot in np.flatnonzero(self.held).tolist():
            self.drop(slot)

    # --- search --------------------------------------------------------------------------------------------------

    def match(self, tokens_T: np.ndarray) -> tuple[int, int, int]:
        """The slot that shares the longest prefix with `tokens_T`, its length, and the length that is still to come.

        The third figure counts what running prefills will have added. Among equals a parked slot that can be continued
        in place comes first. (-1, 0, 0) if nothing is shared, now or soon.
        """
        near = min(len(tokens_T), PAGE, self.tokens.shape[1])
        if not near:
            return -1, 0, 0
        # The first page tells nearly all sequences apart; only its survivors are compared in full.
        equal = self.tokens[:, :near] == tokens_T[:near]
        alike = np.flatnonzero(equal.all(1) & (self.planned >= near))
        if len(alike):
            width = min(len(tokens_T), self.tokens.shape[1])
            equal = self.tokens[alike, :width] == tokens_T[:width]
        else:
            alike, width = np.arange(len(equal)), near
        common = np.where(equal.all(1), width, equal.argmin(1))
        shared, length = np.minimum(common, self.length[alike]), self.length[alike]
        best = int(np.argmax(2 * shared + (~self.running[alike] & (length == shared))))
        return int(alike[best]), int(shared[best]), int(np.minimum(common, self.planned[alike]).max())

    def stalest(self, keep: int = -1) -> int | None:
        """The parked slot that was used least recently, `keep` aside, or None if none is parked."""
        parked = np.flatnonzero(~self.running & (self.held > 0))
        parked = parked[parked != keep]
        return int(parked[self.touched[parked].argmin()]) if len(parked) else None

    # --- life of a slot ------------------------------------------------------------------------------------------

    def occupy(self, slot: int, tokens_T: np.ndarray) -> None:
        """`slot`, which may hold the beginning of the sequence, now works on it: pages for one token more are taken."""
        self._widen(len(tokens_T) + 1)
        self.running[slot] = True
        self.planned[slot] = len(tokens_T)
        self.tokens[slot, : len(tokens_T)] = tokens_T
        self.extend(slot, len(tokens_T) + 1)
        self.touch(slot)

    def fork(self, source: int, shared: int) -> int:
        """A new slot that shares the first `shared` tokens of `source`: full pages are held, part of one is copied."""
        slot = self.empty()
        full, rest = divmod(shared, PAGE)
        pages = self.table[source, :full]
        self.store.hold(pages)
        self.table[slot, :full] = pages
        self.held[slot], self.length[slot] = full, shared
        self.tokens[slot, :shared] = self.tokens[source, :shared]
        if rest:
            self.extend(slot, shared)
            self.store.copy(int(self.table[source, full]), int(self.table[slot, full]))
        return slot

    def extend(self, slot: int, tokens: int) -> None:
        """Take the pages that `slot` lacks for `tokens` tokens."""
        self._widen(tokens)
        have, want = int(self.held[slot]), pages_for(tokens)
        if want > have:
            self.table[slot, have:want] = self.store.take(want - have)
            self.held[slot] = want

    def park(self, slot: int) -> None:
        """The row has left; its keys and values stay until the room is needed. Pages ahead of them are given back."""
        self.running[slot] = False
        self.planned[slot] = self.length[slot]
        want = pages_for(int(self.length[slot]))
        self.store.release(self.table[slot, want : self.held[slot]])
        self.held[slot] = want
        self.touch(slot)

    def drop(self, slot: int) -> None:
        """Forget a parked slot; pages that no other sequence holds become free."""
        self.cut(slot, 0)

    def cut(self, slot: int, tokens: int) -> int:
        """Forget a parked slot beyond the last full page within its first `tokens`; the tokens that are left."""
        kept = tokens // PAGE
        self.store.release(self.table[slot, kept : self.held[slot]])
        self.held[slot] = kept
        self.length[slot] = self.planned[slot] = kept * PAGE
        return kept * PAGE

    def touch(self, slot: int) -> None:
        """Mark as just used."""
        self._clock += 1
        self.touched[slot] = self._clock

    def renumber(self, source: np.ndarray, target: np.ndarray) -> None:
        """Move pages, and follow them in every slot."""
        self.store.permute(source, target)
        new_P = np.arange(self.store.pages)
        new_P[source] = target
        self.table = new_P[self.table]

    # --- records -------------------------------------------------------------------------------------------------

    def empty(self) -> int:
        """A slot without a sequence; the stalest parked one gives way if there are too many."""
        free = np.flatnonzero(~self.running & (self.held == 0))
        if len(free):
            return int(free[0])
        if len(self.held) < self._limit:
            self._lengthen(min(max(2 * len(self.held), _FIRST_SLOTS), self._limit))
            return self.empty()
        stalest = self.stalest()
        if stalest is None:
            raise RuntimeError(f"{len(self.held)} sequences run; there is no slot for another one")
        self.drop(stalest)
        return stalest

    def _lengthen(self, slots: int) -> None:
        for name in ("tokens", "table", "length", "planned", "held", "touched", "running"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((slots - len(old), *old.shape[1:]), old.dtype)]))

    def _widen(self, tokens: int) -> None:
        if tokens <= self.tokens.shape[1]:
            return
        width = -(-max(tokens, self.tokens.shape[1] * 3 // 2) // _GRAIN) * _GRAIN
        for name, columns in (("tokens", width), ("table", width // PAGE)):
            old = getattr(self, name)
            setattr(self, name, np.pad(old, ((0, 0), (0, columns - old.shape[1]))))
