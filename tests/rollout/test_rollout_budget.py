"""Who gets the branches: whatever arrives first, the outcome is that of serving the finished group in rank order."""

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.rollout.budget import Budget, child_path
from arpo.rollout.settings import BudgetSettings
from arpo.seeds import derive

Place = tuple[str, int]


@dataclass(frozen=True)
class World:
    """Trajectories whose wishes, gains, room and lengths depend on their names alone."""

    key: int
    roots: tuple[int, ...]
    branches: int

    def luck(self, *place: object) -> random.Random:
        return random.Random(f"{self.key}{place}")

    def wants(self, path: str, depth: int) -> bool:
        return self.luck(path, depth, "wants").random() < 0.7

    def gain(self, path: str, depth: int) -> float:
        return self.luck(path, depth, "gain").choice([-0.5, 0.0, 0.25, 1.0])

    def tokens_left(self, path: str, depth: int) -> int:
        return self.luck(path, depth, "room").randrange(100)

    def last(self, path: str, born: int) -> int:
        """Depth of the last decision of a trajectory that was opened at depth `born`."""
        return self.roots[int(path[1:])] if born == 0 else born + self.luck(path, "last").randrange(3)


def play(world: World, units: int, chosen: BudgetSettings, arrivals: random.Random) -> tuple[dict[Place, int], Budget]:
    """Advance the trajectories in a random order. What each claim got, by place."""
    budget = Budget(units, chosen, world.branches, derive)
    running = {f"r{i}": (1, world.last(f"r{i}", 0)) for i in range(len(world.roots))}
    for path in running:
        budget.enter(path)
    opened: dict[Place, int] = {}
    while running:
        path = arrivals.choice(sorted(running))
        depth, last = running[path]
        if depth > last:
            budget.leave(path)
            del running[path]
        else:
            possible = not budget.refusal(path, world.tokens_left(path, depth))
            if possible and world.wants(path, depth):
                budget.claim(path, world.branches, world.gain(path, depth))
            else:
                budget.skip(path)
            running[path] = (depth + 1, last)
        for grant in budget.settle():
            claim = grant.claim
            assert (claim.path, claim.depth) not in opened
            opened[claim.path, claim.depth] = grant.opened
            for number in range(1, grant.opened + 1):
                child = child_path(claim.path, claim.depth, number)
                running[child] = (claim.depth + 1, world.last(child, claim.depth))
    return opened, budget


def serve(world: World, units: int, chosen: BudgetSettings) -> dict[Place, int]:
    """The oracle: depth by depth, all claims are known, and are served by rank until nothing is left."""
    alive = {f"r{i}": (0, world.last(f"r{i}", 0)) for i in range(len(world.roots))}
    used: Counter[str] = Counter()
    opened: dict[Place, int] = {}
    for depth in range(1, 40):
        claims = []
        for path, (born, last) in alive.items():
            allowed = chosen.max_depth is None or depth <= chosen.max_depth
            allowed = allowed and world.tokens_left(path, depth) >= chosen.min_tokens_left
            if born < depth <= last and allowed and world.wants(path, depth):
                gain = world.gain(path, depth) if chosen.order == "spread" else 0.0
                claims.append((-gain, derive(path, depth), path))
        for _, _, path in sorted(claims):
            number = min(world.branches, units)
            if chosen.per_trajectory_cap is not None:
                number = min(number, chosen.per_trajectory_cap - used[path])
            if chosen.max_forks is not None and forks_above(path, depth, opened) >= chosen.max_forks:
                number = 0
            opened[path, depth] = number
            used[path] += number
            units -= number
            for extra in range(1, number + 1):
                child = child_path(path, depth, extra)
                alive[child] = (depth, world.last(child, depth))
    return opened


def forks_above(path: str, depth: int, opened: dict[Place, int]) -> int:
    """Branching points between the prompt and this place."""
    own = sum(1 for (p, d), number in opened.items() if number and p == path and d < depth)
    if "/" not in path:
        return own
    parent, _, place = path.rpartition("/")
    return own + forks_above(parent, int(place.split(".")[0]) + 1, opened)


WORLDS = st.builds(
    World, st.integers(0, 1 << 30), st.lists(st.integers(0, 4), min_size=1, max_size=6).map(tuple), st.integers(1, 3)
)
LIMITS = st.sampled_from([None, 1, 2])


def budgets(*orders: str) -> st.SearchStrategy[BudgetSettings]:
    return st.builds(
        BudgetSettings,
        order=st.sampled_from(orders),
        per_trajectory_cap=LIMITS,
        max_forks=LIMITS,
        max_depth=LIMITS,
        min_tokens_left=st.sampled_from([0, 50]),
    )


@settings(max_examples=250, deadline=None)
@given(WORLDS, st.integers(0, 9), budgets("path", "spread"))
def test_the_outcome_is_that_of_serving_all_claims_by_rank(world: World, units: int, chosen: BudgetSettings) -> None:
    """Defect 5: no order of arrival and no index decides who branches."""
    expected = serve(world, units, chosen)
    for arrivals in range(4):
        opened, budget = play(world, units, chosen, random.Random(arrivals))
        assert opened == expected
        assert budget.left == units - sum(opened.values())
        assert not budget.can_still_open()


@settings(max_examples=150, deadline=None)
@given(WORLDS, st.integers(0, 9), budgets("path", "spread", "arrival"), st.integers(0, 99))
def test_no_limit_is_exceeded(world: World, units: int, chosen: BudgetSettings, seed: int) -> None:
    opened, budget = play(world, units, chosen, random.Random(seed))
    assert sum(opened.values()) == units - budget.left <= units
    own: Counter[str] = Counter()
    for (path, depth), number in opened.items():
        own[path] += number
        assert number <= world.branches
        if number:
            assert chosen.max_depth is None or depth <= chosen.max_depth
            assert world.tokens_left(path, depth) >= chosen.min_tokens_left
            assert chosen.max_forks is None or forks_above(path, depth, opened) < chosen.max_forks
    assert chosen.per_trajectory_cap is None or max(own.values(), default=0) <= chosen.per_trajectory_cap


@settings(max_examples=100, deadline=None)
@given(WORLDS, budgets("path", "spread"), st.integers(0, 99))
def test_nothing_waits_while_the_budget_is_ample(world: World, chosen: BudgetSettings, seed: int) -> None:
    """As many units as could ever be claimed: each claim is settled the moment it is made."""
    depths = 10
    budget = Budget(len(world.roots) * ((1 + world.branches) ** depths - 1), chosen, world.branches, derive)
    arrivals = random.Random(seed)
    running = {f"r{i}": 1 for i in range(len(world.roots))}
    for path in running:
        budget.enter(path)
    for _ in range(30):
        path = arrivals.choice(sorted(running))
        depth = running[path]
        if depth > depths:
            continue
        running[path] = depth + 1
        if not world.wants(path, depth):
            budget.skip(path)
            assert budget.settle() == []
            continue
        budget.claim(path, world.branches, world.gain(path, depth))
        (grant,) = budget.settle()
        assert (grant.claim.path, grant.claim.depth) == (path, depth)
        running |= {child_path(path, depth, number): depth + 1 for number in range(1, grant.opened + 1)}


def by_index(path: str, depth: int) -> int:
    return int(path[1:].split("/")[0])


def two_roots(chosen: BudgetSettings, units: int = 1, branches: int = 1) -> Budget:
    budget = Budget(units, chosen, branches, by_index)
    budget.enter("r0")
    budget.enter("r1")
    return budget


def test_path_waits_for_earlier_hashes_only() -> None:
    budget = two_roots(BudgetSettings())
    budget.claim("r1", 1)
    assert budget.settle() == []
    budget.skip("r0")
    (grant,) = budget.settle()
    assert (grant.claim.path, grant.opened) == ("r1", 1)
    other = two_roots(BudgetSettings())
    other.claim("r0", 1)
    (grant,) = other.settle()
    assert (grant.claim.path, grant.opened) == ("r0", 1)


def test_spread_waits_for_everybody_at_its_depth_and_serves_the_largest_gain() -> None:
    budget = two_roots(BudgetSettings(order="spread"))
    budget.claim("r0", 1, gain=0.1)
    assert budget.settle() == [], "r1 has not decided yet and may have risen more"
    budget.claim("r1", 1, gain=0.2)
    assert [(g.claim.path, g.opened, g.note) for g in budget.settle()] == [("r1", 1, ""), ("r0", 0, "budget spent")]


def test_spread_ranks_by_depth_first() -> None:
    """A claim's fate must not depend on what its own trajectory does later."""
    budget = two_roots(BudgetSettings(order="spread"))
    budget.claim("r0", 1, gain=-0.4)
    budget.claim("r0", 1, gain=5.0)
    budget.claim("r1", 1, gain=-0.5)
    assert [(g.claim.path, g.claim.depth, g.opened) for g in budget.settle()] == [
        ("r0", 1, 1),
        ("r1", 1, 0),
        ("r0", 2, 0),
    ]


def test_spread_breaks_ties_by_hash() -> None:
    budget = two_roots(BudgetSettings(order="spread"))
    budget.claim("r1", 1, gain=0.2)
    budget.claim("r0", 1, gain=0.2)
    assert [g.claim.path for g in budget.settle() if g.opened] == ["r0"]


def test_a_cap_frees_units_for_others() -> None:
    greedy = two_roots(BudgetSettings(), units=2, branches=2)
    capped = two_roots(BudgetSettings(per_trajectory_cap=1), units=2, branches=2)
    for budget in (greedy, capped):
        budget.claim("r0", 2)
        budget.claim("r1", 2)
    assert [(g.opened, g.note) for g in greedy.settle()] == [(2, ""), (0, "budget spent")]
    assert [(g.opened, g.note) for g in capped.settle()] == [(1, "per_trajectory_cap reached")] * 2


def test_a_cap_counts_what_a_trajectory_opened_itself() -> None:
    budget = two_roots(BudgetSettings(per_trajectory_cap=1), units=9)
    budget.claim("r0", 1)
    budget.settle()
    budget.claim("r0", 1)
    budget.claim("r0/1.1", 1)
    found = {g.claim.path: (g.opened, g.note) for g in budget.settle()}
    assert found == {"r0": (0, "per_trajectory_cap reached"), "r0/1.1": (1, "")}


def test_what_caps_forbid_is_not_waited_for() -> None:
    """r1 comes late at depth 1 and could open 7 units down to depth 3; with one branch a trajectory, 3 levels give 7
    still, but with one fork on a path only 1."""
    waiting, free = (Budget(3, BudgetSettings(max_forks=forks), 1, by_index) for forks in (None, 1))
    for budget in (waiting, free):
        budget.enter("r0")
        budget.enter("r1")
        budget.skip("r1")
        budget.skip("r1")
        budget.claim("r1", 1)
    assert waiting.settle() == []
    assert [g.opened for g in free.settle()] == [1]


def test_places_where_nothing_may_open() -> None:
    budget = two_roots(BudgetSettings(max_depth=1, min_tokens_left=10))
    assert not budget.refusal("r0", 10)
    assert budget.refusal("r0", 9)
    assert budget.refusal("r0", 9) == "fewer than min_tokens_left"
    budget.skip("r0")
    assert budget.refusal("r0", 10)
    assert budget.refusal("r0", 10) == "max_depth reached"
    assert budget.can_still_open()
    budget.skip("r1")
    assert not budget.can_still_open(), "nobody can claim below max_depth any more"


@pytest.mark.parametrize("order", ["path", "spread"])
def test_a_pause_does_not_depend_on_how_far_the_others_are(order: str) -> None:
    """A pause changes seeds, so the tree would no longer be a function of them."""
    budget = two_roots(BudgetSettings.model_validate({"order": order, "max_forks": 1, "per_trajectory_cap": 1}))
    budget.claim("r0", 1)
    budget.settle()
    assert not budget.refusal("r0", 100)
    assert not budget.refusal("r1", 100)


def test_arrival_never_waits_and_stops_pausing_when_nothing_is_left() -> None:
    budget = two_roots(BudgetSettings(order="arrival"), branches=2)
    assert not budget.refusal("r0", 100)
    budget.claim("r1", 2)
    (grant,) = budget.settle()
    assert (grant.opened, grant.note) == (1, "budget spent")
    assert budget.refusal("r0", 100)
    assert budget.refusal("r0", 100) == "budget spent"


def test_no_fixed_index_is_favoured() -> None:
    """Defect 5: over many places each of 8 trajectories gets the only branch about equally often."""
    wins = dict.fromkeys((f"r{number}" for number in range(8)), 0)
    for place in range(800):
        mixed = random.Random(place)
        ranks = {path: mixed.random() for path in wins}
        budget = Budget(1, BudgetSettings(), 1, lambda path, depth, ranks=ranks: int(ranks[path] * 1e9))
        for path in wins:
            budget.enter(path)
        for path in wins:
            budget.claim(path, 1)
        for grant in budget.settle():
            wins[grant.claim.path] += grant.opened
    assert sum(wins.values()) == 800
    assert min(wins.values()) > 60


def test_forks_are_counted_on_the_path() -> None:
    budget = Budget(9, BudgetSettings(max_forks=1), 1, lambda path, depth: 0)
    budget.enter("r0")
    budget.claim("r0", 1)
    budget.settle()
    for path in ("r0", "r0/1.1"):
        budget.claim(path, 1)
    notes = [(grant.opened, grant.note) for grant in budget.settle()]
    assert notes == [(0, "max_forks reached")] * 2
    assert not budget.can_still_open()


def test_the_bound_on_what_may_come_is_the_most_that_can_come() -> None:
    """Against a search over everything that a trajectory and its descendants may open."""
    from arpo.rollout.budget import _most

    def best(depths: int, forks: int, room: int, cap: int, branches: int) -> int:
        if depths == 0 or forks == 0:
            return 0
        found = best(depths - 1, forks, room, cap, branches)
        for n in range(1, min(branches, room) + 1):
            own = best(depths - 1, forks - 1, room - n, cap, branches)
            found = max(found, n + own + n * best(depths - 1, forks - 1, cap, cap, branches))
        return found

    for depths, forks, cap, branches in itertools.product(range(5), range(4), range(1, 4), range(1, 4)):
        for room in range(cap + 1):
            assert _most(depths, forks, room, cap, branches) == best(depths, forks, room, cap, branches)
    assert _most(3, 9, 99, 99, 1) == 7
    assert math.isclose(_most(4, 9, 999, 999, 2), 3**4 - 1)


def test_child_paths_name_their_place() -> None:
    names = [child_path(p, d, n) for p, d, n in itertools.product(("r0", "r0/1.1"), (1, 2), (1, 2))]
    assert len(set(names)) == len(names)
    assert names[0] == "r0/1.1"
