"""Keys and values of one replica: which prefixes are there, what a request must compute, and what goes first.

A block is what one piece, result or prompt added to its parent; a sequence holds the chain up to the prompt. Blocks
that no running sequence needs stay as long as there is room and go in the order in which they were last used, children
before their parents. So a branch computes what is new, and a prefix that was pushed out during a long tool call is
computed again, as with a real engine.
"""

from collections import OrderedDict
from collections.abc import Iterator


class Block:
    """`size` tokens behind `parent`. `pins`: running sequences that hold it."""

    __slots__ = ("here", "length", "parent", "pins", "size")

    def __init__(self, size: int, parent: "Block | None" = None) -> None:
        self.size, self.parent = size, parent
        self.length: int = size + (parent.length if parent is not None else 0)
        self.here = False
        self.pins = 0

    def chain(self) -> Iterator["Block"]:
        """This block and all above it."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent


class Cache:
    """Room for `capacity` tokens. `used`: tokens held, growing sequences included; `idle`: of these, what may go."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.idle = 0
        self.pushed_out = 0
        self._order: OrderedDict[Block, None] = OrderedDict()

    def hold(self, block: Block, more: int) -> int | None:
        """Pin the chain of `block` with room for `more` tokens besides; tokens that must be computed, None: no room."""
        chain = list(block.chain())
        for one in chain:
            self._pin(one)
        missing = [one for one in chain if not one.here]
        wanted = sum(one.size for one in missing)
        if not self.make_room(wanted + more):
            self.release(block)
            return None
        for one in missing:
            one.here = True
        self.used += wanted
        return wanted

    def release(self, block: Block) -> None:
        """A sequence needs its chain no more. The last blocks count as used first, so that they go first."""
        for one in block.chain():
            one.pins -= 1
            if not one.pins and one.here:
                self._order[one] = None
                self.idle += one.size

    def add(self, block: Block) -> None:
        """What a sequence has sampled (already counted as used) becomes a block that nobody holds."""
        block.here = True
        self._order[block] = None
        self.idle += block.size

    def make_room(self, wanted: int) -> bool:
        """Push out idle blocks until `wanted` tokens fit; False, and nothing done, if they cannot."""
        if self.used - self.idle + wanted > self.capacity:
            return False
        while self.used + wanted > self.capacity:
            block, _ = self._order.popitem(last=False)
            block.here = False
            self.idle -= block.size
            self.used -= block.size
            self.pushed_out += block.size
        return True

    def _pin(self, block: Block) -> None:
        if not block.pins and block.here:
            del self._order[block]
            self.idle -= block.size
        block.pins += 1
