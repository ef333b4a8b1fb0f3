"""Who gets the M - N extra trajectories when more branches are wanted than there are.

Claims are ranked by depth (tool results on the path) first, so early branching points come first. Within a depth the
order "path" ranks by a hash of the place, which favours no trajectory for its index; "spread" ranks by gain (the rise
of entropy), the largest first, then by the hash. The outcome is the one that granting all claims of the finished group
in rank order would give, whatever finished first, and yet nobody waits at a barrier. A trajectory that claims goes on
at once; only its *children* wait, and only until it is certain that everybody who might still come with an earlier
rank leaves enough. While the budget is ample that is at once. With order "arrival" a claim is granted when it is made.

How much can still come before a claim at depth d? A trajectory whose next decision is at depth e < d can at most double
(for Z = 1) at each of the depths e..d, less what the caps forbid (`_most`). At e = d it is Z units if it might rank
earlier: by its hash for "path"; for "spread" always, since its gain is not known before it has decided.

Is branching still predictable? A claim's fate depends on who ranks before it: with "path" on hashes and on what was
decided at this depth or above, with "spread" also on the gains of others at this depth, each read before its own
branching point. Nothing that is sampled behind a branching point of this depth plays a part, be it on the claim's own
trajectory or on another, so splitting weights stay unbiased (enumerated exactly in `study`). That is why depth comes
before gain: ranking all claims of the finished group by gain would let a late claim of a trajectory decide about an
early one of its own. `max_forks` and `per_trajectory_cap` look at the path above, `max_depth` and `min_tokens_left` at
the place. With "arrival" it depends on what happened earlier in time, on any trajectory: predictable, not reproducible.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from arpo.rollout.settings import BudgetSettings


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """`wanted` children for trajectory `path` at its tool result number `depth`; ordered by rank.

    `priority`: minus the gain with order "spread", else 0, so that what is smaller is served first.
    """

    depth: int
    priority: float
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
    """Counts `units` extra trajectories down; `branches`: Z. `hash_of(path, depth)` breaks ties."""

    def __init__(self, units: int, settings: BudgetSettings, branches: int, hash_of: Callable[[str, int], int]) -> None:
        self.left = units
        self._settings = settings
        self._branches = branches
        self._hash_of = hash_of
        self._max_forks = units if settings.max_forks is None else settings.max_forks
        self._cap = units if settings.per_trajectory_cap is None else settings.per_trajectory_cap
        self._next_depth: dict[str, int] = {}
        self._forks: dict[str, int] = {}
        self._opened: dict[str, int] = {}
        self._pending: list[Claim] = []

    def enter(self, path: str) -> None:
        """A trajectory starts from the prompt."""
        self._enter(path, 1, 0)

    def _enter(self, path: str, depth: int, forks: int) -> None:
        self._next_depth[path] = depth
        self._forks[path] = forks
        self._opened[path] = 0

    def skip(self, path: str) -> None:
        """The trajectory's decision at its present depth was not to branch."""
        self._next_depth[path] += 1

    def claim(self, path: str, wanted: int, gain: float = 0.0) -> None:
        """The trajectory wants `wanted` children at its present depth; `gain`: what "spread" ranks by."""
        depth = self._next_depth[path]
        priority = -gain if self._settings.order == "spread" else 0.0
        self._pending.append(Claim(depth, priority, self._hash_of(path, depth), path, wanted))
        self._next_depth[path] = depth + 1

    def leave(self, path: str) -> None:
        """The trajectory will claim no more (it ended, or has no calls left). Its pending claims stand."""
        self._next_depth.pop(path, None)

    def refusal(self, path: str, tokens_left: int) -> str:
        """Why nothing can open at this trajectory's next decision; "" if something may.

        `tokens_left`: response tokens left at the point where children would open. Except with order "arrival" this
        is a function of the place alone: a pause changes seeds, so it must not depend on how far the others are.
        """
        limit = self._settings.max_depth
        if limit is not None and self._next_depth[path] > limit:
            return "max_depth reached"
        if tokens_left < self._settings.min_tokens_left:
            return "fewer than min_tokens_left"
        if self._settings.order != "arrival":
            return ""
        return self._exhausted(path) or ("" if self.left else "budget spent")

    def can_still_open(self) -> bool:
        """False when it is certain that no further branch comes."""
        return self.left > 0 and (bool(self._pending) or any(self._may_claim(path) for path in self._next_depth))

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
        path, note = claim.path, self._exhausted(claim.path)
        if note:
            return Grant(claim, 0, note)
        allowed = min(claim.wanted, max(self._cap - self._opened[path], 0))
        opened = min(allowed, self.left)
        self.left -= opened
        self._opened[path] += opened
        self._forks[path] += opened > 0
        for number in range(1, opened + 1):
            self._enter(child_path(path, claim.depth, number), claim.depth + 1, self._forks[path])
        if opened == claim.wanted:
            return Grant(claim, opened, "")
        capped = self._settings.per_trajectory_cap is not None and opened == allowed
        return Grant(claim, opened, "per_trajectory_cap reached" if capped else "budget spent")

    def _certain(self, claim: Claim) -> bool:
        if self._settings.order == "arrival" or self.left == 0 or self._exhausted(claim.path):
            return True
        ahead = sum(self._ahead(path, claim) for path in self._next_depth)
        return ahead == 0 or self.left >= ahead + claim.wanted

    def _ahead(self, path: str, claim: Claim) -> int:
        """Units that `path` and its descendants might still claim with an earlier rank: an upper bound."""
        gap = claim.depth - self._next_depth[path]
        if gap < 0 or (gap == 0 and not self._may_precede(path, claim)):
            return 0
        forks, room = self._max_forks - self._forks[path], self._cap - self._opened[path]
        return _most(gap + 1, forks, room, self._cap, self._branches)

    def _may_precede(self, path: str, claim: Claim) -> bool:
        """Whether `path`, which decides at the claim's depth next, might rank before it."""
        if self._settings.order == "spread":
            return True
        return (self._hash_of(path, claim.depth), path) < (claim.hash, claim.path)

    def _may_claim(self, path: str) -> bool:
        limit = self._settings.max_depth
        return not self._exhausted(path) and (limit is None or self._next_depth[path] <= limit)

    def _exhausted(self, path: str) -> str:
        """Which cap forbids `path` to open anything more, or ""."""
        if self._settings.max_forks is not None and self._forks[path] >= self._max_forks:
            return "max_forks reached"
        if self._settings.per_trajectory_cap is not None and self._opened[path] >= self._cap:
            return "per_trajectory_cap reached"
        return ""


@cache
def _most(depths: int, forks: int, room: int, cap: int, branches: int) -> int:
    """Units that a trajectory and its descendants can open at so many `depths`, if it opens all it may at once.

    `forks`: branching points that its path may still have; `room`: units that it may still open, its children `cap`
    each. Opening early and much is the most: every child then has more depths of its own.
    """
    opened = min(branches, room)
    if depths <= 0 or forks <= 0 or opened <= 0:
        return 0
    own = _most(depths - 1, forks - 1, room - opened, cap, branches)
    return opened + own + opened * _most(depths - 1, forks - 1, cap, cap, branches)
