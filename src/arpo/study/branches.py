"""Where branches opened, and what they were worth.

A branch is worth something if the trajectories that part there end differently: that is what gives the tokens after it
a gradient. The yardstick is what independent trajectories of the same question do, so both are measured the same way:
the share of pairs with different rewards, over pairs that part at a branching point and over pairs that share
nothing but the prompt. Each branching point and each question counts once. Trajectories without a reward are left out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from arpo.evaluate.intervals import Interval, bootstrap
from arpo.tree import Decision, RolloutTree

BINS = 24
SAME = 1e-9
"""Rewards closer than this are the same."""


@dataclass(frozen=True, slots=True)
class Share:
    """A mean share over `n` branching points or questions; the interval resamples questions. None: nothing to see."""

    value: float | None = None
    ci95: Interval | None = None
    n: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """`points`: results after which the rule decided; `branched`: those where it opened something; `opened`: how many
    trajectories it opened."""

    points: int = 0
    branched: int = 0
    opened: int = 0

    def plus(self, decision: Decision) -> "Tally":
        """With one more decision."""
        return Tally(self.points + 1, self.branched + (decision.opened > 0), self.opened + decision.opened)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Decisions by delta-H: `edges` `[bins + 1]`; counts of points that opened a branch and of those that did not."""

    edges: tuple[float, ...] = ()
    opened: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchStatistics:
    """Everything about the branches of some trees. `wanted`: trajectories asked for, `total.opened` of them granted.

    `points_differ`: branching points at which two children ended with different rewards. `siblings`: pairs that part at
    a branching point and end differently; `strangers`: the same of pairs from different roots. `busiest`: share of a
    question's branches that lie on its busiest trajectory, over questions with at least two.
    """

    trees: int
    total: Tally
    wanted: int
    by_tool: Mapping[str, Tally] = field(default_factory=dict)
    by_depth: Mapping[int, Tally] = field(default_factory=dict)
    delta: Histogram = field(default_factory=Histogram)
    points_differ: Share = field(default_factory=Share)
    siblings: Share = field(default_factory=Share)
    strangers: Share = field(default_factory=Share)
    busiest: Share = field(default_factory=Share)


def branch_statistics(trees: Sequence[RolloutTree], seed: int = 0) -> BranchStatistics:
    """Statistics of scored trees."""
    decisions = [decision for tree in trees for decision in tree.decisions]
    points = [list(_branch_points(tree)) for tree in trees]
    return BranchStatistics(
        trees=len(trees),
        total=_tally(decisions),
        wanted=sum(decision.wanted for decision in decisions),
        by_tool={tool: _tally(d for d in decisions if d.tool == tool) for tool in sorted({d.tool for d in decisions})},
        by_depth={n: _tally(d for d in decisions if d.depth == n) for n in sorted({d.depth for d in decisions})},
        delta=_histogram(decisions),
        points_differ=_share([[float(share > 0) for share in shares] for shares in points], seed),
        siblings=_share(points, seed),
        strangers=_share([list(_root_pairs(tree)) for tree in trees], seed),
        busiest=_share([list(_busiest(tree)) for tree in trees], seed),
    )


def _tally(decisions: Iterator[Decision] | Sequence[Decision]) -> Tally:
    tally = Tally()
    for decision in decisions:
        tally = tally.plus(decision)
    return tally


def _histogram(decisions: Sequence[Decision]) -> Histogram:
    known = [d for d in decisions if np.isfinite(d.delta)]
    if not known:
        return Histogram()
    reach = max(max(abs(d.delta) for d in known), 1e-6)
    edges = np.linspace(-reach, reach, BINS + 1)
    counts = [np.histogram([d.delta for d in known if (d.opened > 0) == opened], edges)[0] for opened in (True, False)]
    return Histogram(tuple(edges.tolist()), tuple(counts[0].tolist()), tuple(counts[1].tolist()))


def _branch_points(tree: RolloutTree) -> Iterator[float]:
    """For each branching point, the share of pairs parting there that end with different rewards."""
    for node in sorted({d.node for d in tree.decisions if d.opened}):
        share = _pairs_differ(tree, tree.children[node])
        if share is not None:
            yield share


def _root_pairs(tree: RolloutTree) -> Iterator[float]:
    share = _pairs_differ(tree, tree.children[0])
    if share is not None:
        yield share


def _pairs_differ(tree: RolloutTree, nodes: Sequence[int]) -> float | None:
    """Share of pairs of trajectories, taken from under two different `nodes`, whose rewards differ; None: no pair."""
    groups = [_rewards_under(tree, node) for node in nodes]
    pairs = [(x, y) for one, other in combinations(groups, 2) for x in one for y in other]
    return sum(abs(x - y) > SAME for x, y in pairs) / len(pairs) if pairs else None


def _rewards_under(tree: RolloutTree, node: int) -> list[float]:
    scored = zip(tree.leaves, tree.rewards, strict=True) if tree.outcomes else ()
    return [reward for leaf, reward in scored if reward is not None and node in tree.ancestry(leaf)]


def _busiest(tree: RolloutTree) -> Iterator[float]:
    opened: Counter[int] = Counter()
    for decision in tree.decisions:
        opened[decision.node] += decision.opened
    total = sum(opened.values())
    if total >= 2:
        yield max(sum(opened[node] for node in tree.ancestry(leaf)) for leaf in tree.leaves) / total


def _share(values_by_tree: Sequence[Sequence[float]], seed: int) -> Share:
    """Mean over all values; the bootstrap resamples trees, weighing each by how many values it has."""
    groups = [values for values in values_by_tree if values]
    if not groups:
        return Share()
    sums, sizes = np.array([sum(g) for g in groups]), np.array([len(g) for g in groups])
    mean = float(sums.sum() / sizes.sum())
    # The ratio's influence values have the mean and, to first order, the spread of the ratio itself.
    influence = mean + (sums - mean * sizes) / sizes.mean()
    low, high = bootstrap(influence.tolist(), seed=seed)
    return Share(mean, Interval(max(low, 0.0), min(high, 1.0)), int(sizes.sum()))
