"""Who gets the M - N extra trajectories when more branches are wanted than there are.

Claims are ranked by depth (tool results on the path), then by a hash of place: early branching points first, and no
trajectory favoured for its index. With order "path" the outcome is the one that granting all claims of the finished
group in rank order would give, whatever finished first, and yet nobody waits at a barrier. A trajectory that claims
goes on at once; only its *children* wait, and only until it is certain that everybody who might still come with an
earlier rank leaves enough. While the budget is ample that is at once. A claim's fate depends on earlier ranks
alone, never on what its own trajectory does later, so branching stays predictable.

How much can still come before a claim at depth d? A trajectory whose next decision is at depth e < d can at most double
(for Z = 1) at each of the depths e..d: (1 + Z)^(d - e + 1) - 1 units; at e = d, Z units if its hash is the smaller.

With order "arrival" a claim is granted when it is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """`wanted` children for trajectory `path` at its tool result number `depth`; ordered by rank."""

    depth: int
    hash: int
    path: str
    wanted: int


@dataclass(frozen=True, slots=True)
class Grant:
    """`opened` children for a claim; `note` says why not all, if so."""

    claim: Claim
    opened: int
    note: str


def child_path(path: str, depth: int, number: int) -> str:
    """Name of the extra child `number` (from 1) that trajectory `path` opens at its tool result `depth`."""
    return f"{path}/{depth}.{number}"


class Budget:
    """Counts `units` extra trajectories down. `hash_of(path, depth)` breaks ties; `max_forks` per path, or None."""

    def __init__(
        self,
        units: int,
        branches: int,
        hash_of: Callable[[str, int], int],
        *,
        max_forks: int | None = None,
        order: Literal["path", "arrival"] = "path",
    ) -> None:
        self.left = units
        self._branches = branches
        self._hash_of = hash_of
        self._max_forks = max_forks
        self._order = order
        self._next_depth: dict[str, int] = {}
        self._forks: dict[str, int] = {}
        self._pending: list[Claim] = []

    def enter(self, path: str) -> None:
        """A trajectory starts from the prompt."""
        self._next_depth[path] = 1
        self._forks[path] = 0

    def skip(self, path: str) -> None:
        """The trajectory's decision at its present depth was not to branch."""
        self._next_depth[path] += 1

    def claim(self, path: str, wanted: int) -> None:
        """The trajectory wants `wanted` children at its present depth."""
        depth = self._next_depth[path]
        self._pending.append(Claim(depth, self._hash_of(path, depth), path, wanted))
        self._next_depth[path] = depth + 1

    def leave(self, path: str) -> None:
        """The trajectory will claim no more (it ended, or has no calls left). Its pending claims stand."""
        self._next_depth.pop(path, None)

    def worth_pausing(self, path: str) -> bool:
        """False if nothing can open at this trajectory's next decision, whatever it is.

        With order "path" always True: a pause changes seeds, so it must not depend on how far the others are.
        """
        return self._order == "path" or (self.left > 0 and not self._forked_out(path))

    def can_still_open(self) -> bool:
        """False when it is certain that no further branch comes."""
        return self.left > 0 and (bool(self._pending) or any(not self._forked_out(p) for p in self._next_depth))

    def settle(self) -> list[Grant]:
        """Grant what is certain, in rank order. Children granted are entered here."""
        grants = []
        for claim in sorted(self._pending):
            if not self._certain(claim):
                break
            self._pending.remove(claim)
            grants.append(self._grant(claim))
        return grants

    def _grant(self, claim: Claim) -> Grant:
        if self._forked_out(claim.path):
            return Grant(claim, 0, "max_branch_depth reached")
        opened = min(claim.wanted, self.left)
        self.left -= opened
        if opened:
            self._forks[claim.path] += 1
        for number in range(1, opened + 1):
            child = child_path(claim.path, claim.depth, number)
            self._next_depth[child] = claim.depth + 1
            self._forks[child] = self._forks[claim.path]
        return Grant(claim, opened, "" if opened == claim.wanted else "budget spent")

    def _certain(self, claim: Claim) -> bool:
        if self._order == "arrival" or self.left == 0:
            return True
        ahead = sum(self._ahead(path, claim) for path in self._next_depth)
        return ahead == 0 or self.left >= ahead + claim.wanted

    def _ahead(self, path: str, claim: Claim) -> int:
        """Units that `path` and its descendants might still claim with an earlier rank: an upper bound."""
        gap = claim.depth - self._next_depth[path]
        if gap < 0 or self._forked_out(path):
            return 0
        if gap == 0:
            earlier = (self._hash_of(path, claim.depth), path) < (claim.hash, claim.path)
            return self._branches if earlier else 0
        return int((1 + self._branches) ** (gap + 1)) - 1

    def _forked_out(self, path: str) -> bool:
        return self._max_forks is not None and self._forks[path] >= self._max_forks
