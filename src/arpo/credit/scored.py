"""A scored tree as its rewarded trajectories span it, and the few sums that advantage families are made of.

Everything here leaves out what no kept trajectory passes through: a family that is written on counts, children and
means from this view cannot see a trajectory without reward, so the tree gives what it would give without that leaf.

Rewards are taken relative to the group's lowest. All families but REINFORCE++ ignore a constant added to all rewards,
and this way equal rewards give advantages of exactly 0, which no rounding of a mean turns into a signal.

Shapes: M trajectories (leaves), S nodes of the tree.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from arpo.credit.base import Credit
from arpo.tree import RolloutTree


@dataclass(frozen=True, eq=False)
class Scored:
    """View of a tree. `reward_M` float64: above the group's lowest, NaN where there is none; `kept_M`: where it is."""

    tree: RolloutTree
    reward_M: np.ndarray
    kept_M: np.ndarray

    @classmethod
    def of(cls, tree: RolloutTree) -> "Scored":
        """Raises ValueError for a tree that has not been scored."""
        if len(tree.outcomes) != len(tree.leaves):
            outcomes = len(tree.outcomes)
            raise ValueError(f"tree {tree.task_id}: credit needs one outcome per trajectory, it has {outcomes}")
        reward_M = np.array([np.nan if reward is None else reward for reward in tree.rewards], np.float64)
        kept_M = ~np.isnan(reward_M)
        return cls(tree, reward_M - reward_M[kept_M].min() if kept_M.any() else reward_M, kept_M)

    @cached_property
    def copies(self) -> np.ndarray:
        """Kept trajectories through each node, float64 `[S]`."""
        return self.sum_through(np.ones(len(self.kept_M)))

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node that a kept trajectory passes through."""
        return tuple(tuple(kid for kid in kids if self.copies[kid] > 0) for kids in self.tree.children)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Nodes from the prompt to each leaf, per trajectory."""
        return tuple(self.tree.ancestry(leaf) for leaf in self.tree.leaves)

    @cached_property
    def roots(self) -> np.ndarray:
        """The first node after the prompt on each path, int `[M]` (the prompt itself if nothing follows it)."""
        return np.array([path[min(1, len(path) - 1)] for path in self.paths], np.int64)

    def sum_through(self, value_M: np.ndarray) -> np.ndarray:
        """Sum of a value over the kept trajectories through each node, float64 `[S]`."""
        total_S = np.zeros(len(self.tree.segments), np.float64)
        total_S[list(self.tree.leaves)] = np.where(self.kept_M, value_M, 0.0)
        for node in range(len(total_S) - 1, 0, -1):
            total_S[self.tree.segments[node].parent] += total_S[node]
        return total_S

    def mean_through(self, value_M: np.ndarray) -> np.ndarray:
        """Mean over the kept trajectories through each node, float64 `[S]`; 0 where there is none."""
        return self.sum_through(value_M) / np.maximum(self.copies, 1.0)

    def child_mean(self, value_M: np.ndarray) -> np.ndarray:
        """The leaf's value, and above it the mean of the children's, recursively, float64 `[S]`; 0 where none is kept.

        Every branch of a fork counts the same, however often it forks again.
        """
        value_S = np.zeros(len(self.tree.segments), np.float64)
        value_S[list(self.tree.leaves)] = np.where(self.kept_M, value_M, 0.0)
        for node in range(len(value_S) - 1, -1, -1):
            if self.children[node]:
                value_S[node] = value_S[list(self.children[node])].mean()
        return value_S

    def counting(self, average: bool) -> np.ndarray:
        """Weight of a node's tokens on each copy, `[S]`: 1, or with `average` one over the number of copies."""
        return 1.0 / np.maximum(self.copies, 1.0) if average else np.ones(len(self.copies))

    def spread(
        self, weight_S: np.ndarray, *, own_M: np.ndarray | None = None, node_S: np.ndarray | None = None
    ) -> Credit:
        """Lay weights along every kept trajectory, and as values what is the trajectory's own plus what is the node's.

        On what the policy did not sample both become 0.
        """
        policy_S = np.array([float(segment.is_policy) for segment in self.tree.segments])
        shared_S = np.zeros(len(policy_S)) if node_S is None else node_S
        values: list[np.ndarray | None] = [None] * len(self.kept_M)
        weights: list[np.ndarray | None] = [None] * len(self.kept_M)
        for m in np.flatnonzero(self.kept_M):
            path = list(self.paths[m])
            own = 0.0 if own_M is None else own_M[m]
            values[m] = (own + shared_S[path]) * policy_S[path]
            weights[m] = weight_S[path] * policy_S[path]
        return Credit(tuple(values), tuple(weights))


def z_scores(value: np.ndarray, epsilon: float, weight: np.ndarray | None = None) -> np.ndarray:
    """(x - mean) / (std + epsilon) over the entries that are not NaN, same shape; NaN stays NaN.

    Population standard deviation; `weight`: how much each entry counts in both moments (default: all the same).
    Equal values, and a single one, give exactly 0, whatever rounding does to the mean.
    """
    known = ~np.isnan(value)
    if not known.any() or value[known].min() == value[known].max():
        return np.where(known, 0.0, np.nan)
    weights = None if weight is None else weight[known]
    mean = np.average(value[known], weights=weights)
    variance = np.average((value[known] - mean) ** 2, weights=weights)
    return (value - mean) / (np.sqrt(variance) + epsilon)
