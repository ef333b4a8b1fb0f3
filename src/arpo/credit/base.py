"""Credit: what each node of each trajectory was worth.

An advantage family is a function from a scored tree to values and weights per trajectory and node; it knows trees and
numbers and nothing else. Families differ in two places only: the value a leaf carries and what a shared node makes of
the leaves below it. Both start from the helpers here, so a family is a few lines. It is looked up by name; adding one
is one file, imported in the room's `__init__`.

A trajectory whose reward is None (infrastructure failed) is not in the baseline and not in the loss: masking only its
loss would still let a failed tool move everybody else's advantage.

Shapes: M trajectories (leaves), S nodes of the tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from arpo.credit.settings import CreditSettings
from arpo.errors import ConfigError
from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """One entry per trajectory, in leaf order; None: excluded (its reward is None).

    `values`: advantage of each node on the path from the prompt to the leaf, float64 `[nodes on the path]`.
    `weights`: how much each of the node's tokens counts in the loss, same shape. Both are 0 on nodes that the policy
    did not sample.
    """

    values: tuple[np.ndarray | None, ...]
    weights: tuple[np.ndarray | None, ...]

    @property
    def has_signal(self) -> bool:
        """Whether any token would be pushed up or down."""
        pairs = zip(self.values, self.weights, strict=True)
        return any(bool((v * w).any()) for v, w in pairs if v is not None and w is not None)


CreditRule = Callable[[RolloutTree, CreditSettings], Credit]
NodeValue = Callable[[int, int], float]
"""(trajectory, node on its path) -> advantage."""
_RULES: dict[str, CreditRule] = {}


def register(name: str) -> Callable[[CreditRule], CreditRule]:
    """Decorator: make a rule known as `name`. Raises ValueError if the name is taken."""

    def keep(rule: CreditRule) -> CreditRule:
        if name in _RULES:
            raise ValueError(f"credit rule {name!r} is registered twice")
        _RULES[name] = rule
        return rule

    return keep


def get(name: str) -> CreditRule:
    """The rule registered as `name`. Raises ConfigError naming the known ones."""
    if name not in _RULES:
        raise ConfigError(f"credit.type = {name!r} is unknown; known: {', '.join(sorted(_RULES))}")
    return _RULES[name]


def assign(tree: RolloutTree, settings: CreditSettings) -> Credit:
    """Credit of a scored tree by the configured rule."""
    return get(settings.type)(tree, settings)


def group_advantages(rewards: Sequence[float | None], epsilon: float) -> np.ndarray:
    """A_l = (R_l - mean R) / (std R + epsilon) over the rewards that exist, float64 `[M]`; NaN where there is none.

    Population standard deviation. Equal rewards and a group of one give exactly 0, whatever rounding does to the mean.
    Source: Shao et al. 2024, "DeepSeekMath", equation 3 (outcome supervision).
    """
    reward_M = np.array([np.nan if r is None else r for r in rewards], np.float64)
    kept = ~np.isnan(reward_M)
    if not kept.any():
        return reward_M
    known = reward_M[kept]
    if known.min() == known.max():
        return np.where(kept, 0.0, np.nan)
    return (reward_M - known.mean()) / (known.std() + epsilon)


def sum_through(tree: RolloutTree, value_M: np.ndarray) -> np.ndarray:
    """Sum of the leaves' values over the trajectories through each node, float64 `[S]`."""
    total_S = np.zeros(len(tree.segments), np.float64)
    total_S[list(tree.leaves)] = value_M
    for node in range(len(tree.segments) - 1, 0, -1):
        total_S[tree.segments[node].parent] += total_S[node]
    return total_S


def leaf_advantages(tree: RolloutTree, settings: CreditSettings) -> tuple[np.ndarray, np.ndarray]:
    """(A float64 `[M]` with NaN for excluded trajectories, d float64 `[S]`: kept trajectories through each node).

    Raises ValueError for a tree that has not been scored.
    """
    if len(tree.outcomes) != len(tree.leaves):
        raise ValueError(f"tree {tree.task_id}: credit needs one outcome per trajectory, it has {len(tree.outcomes)}")
    advantage_M = group_advantages(tree.rewards, settings.epsilon)
    return advantage_M, sum_through(tree, (~np.isnan(advantage_M)).astype(np.float64))


def spread(
    tree: RolloutTree, settings: CreditSettings, kept_M: np.ndarray, count_S: np.ndarray, value: NodeValue
) -> Credit:
    """Lay values and weights along every kept trajectory. `value` is asked for policy nodes alone."""
    weight_S = np.array([float(s.is_policy) for s in tree.segments])
    if settings.shared_prefix_average:
        weight_S /= np.maximum(count_S, 1.0)
    values: list[np.ndarray | None] = []
    weights: list[np.ndarray | None] = []
    for m, leaf in enumerate(tree.leaves):
        path = tree.ancestry(leaf)
        own = [value(m, node) if tree.segments[node].is_policy else 0.0 for node in path]
        values.append(np.array(own, np.float64) if kept_M[m] else None)
        weights.append(weight_S[list(path)] if kept_M[m] else None)
    return Credit(tuple(values), tuple(weights))
