"""Credit: what each node of each trajectory was worth.

An advantage family is a function from a scored tree to values and weights per trajectory; it knows trees and numbers
and nothing else. It is looked up by name; adding one is one file, imported in the room's `__init__`, and its settings.
Most families look at one tree; one that normalises over the batch registers with `register_batch`.

A trajectory whose reward is None (infrastructure failed) is not in any baseline, count or loss: masking only its loss
would still let a failed tool move everybody else's advantage. See `arpo.credit.scored`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from arpo.credit.settings import CreditSettings
from arpo.errors import ConfigError
from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """One entry per trajectory, in leaf order; None: excluded (its reward is None).

    `values`: advantage of each node on the path from the prompt to the leaf, float64 `[nodes on the path]`; or, when
    `per_token`, of each of the path's T tokens, prompt included, float64 `[T]`.
    `weights`: how much each of the node's tokens counts in the loss on this copy, float64 `[nodes on the path]`.
    Both are 0 on what the policy did not sample; on what it did sample, weights are positive.
    """

    values: tuple[np.ndarray | None, ...]
    weights: tuple[np.ndarray | None, ...]
    per_token: bool = False

    @property
    def has_signal(self) -> bool:
        """Whether any token would be pushed up or down."""
        return any(bool(value.any()) for value in self.values if value is not None)


Divergence = Sequence[Sequence[np.ndarray]]
"""Per tree and segment, float64 `[T]`: ln(pi_old / pi_ref) of each policy token, empty for what others wrote."""

S = TypeVar("S")
TreeRule = Callable[[RolloutTree, S], Credit]
BatchRule = Callable[[Sequence[RolloutTree], S, Divergence | None], list[Credit]]
_RULES: dict[str, BatchRule[Any]] = {}


def register_batch(name: str) -> Callable[[BatchRule[S]], BatchRule[S]]:
    """Decorator: make a rule over a whole batch known as `name`. Raises ValueError if the name is taken."""

    def keep(rule: BatchRule[S]) -> BatchRule[S]:
        if name in _RULES:
            raise ValueError(f"credit rule {name!r} is registered twice")
        _RULES[name] = rule
        return rule

    return keep


def register(name: str) -> Callable[[TreeRule[S]], TreeRule[S]]:
    """Decorator: make a rule over one tree known as `name`. Raises ValueError if the name is taken."""

    def keep(rule: TreeRule[S]) -> TreeRule[S]:
        def one_by_one(trees: Sequence[RolloutTree], settings: S, divergence: Divergence | None) -> list[Credit]:
            return [rule(tree, settings) for tree in trees]

        register_batch(name)(one_by_one)
        return rule

    return keep


def get(name: str) -> BatchRule[Any]:
    """The rule registered as `name`. Raises ConfigError naming the known ones."""
    if name not in _RULES:
        raise ConfigError(f"credit.type = {name!r} is unknown; known: {', '.join(sorted(_RULES))}")
    return _RULES[name]


def assign(tree: RolloutTree, settings: CreditSettings) -> Credit:
    """Credit of one scored tree by the configured rule; for a rule over a batch, the tree is the whole batch."""
    return assign_all([tree], settings)[0]


def assign_all(
    trees: Sequence[RolloutTree], settings: CreditSettings, divergence: Divergence | None = None
) -> list[Credit]:
    """Credit of a batch of scored trees, in their order. `divergence`: for a KL term in the reward.

    Raises ConfigError if the settings need a divergence and none is given, ValueError for a tree without outcomes.
    """
    if settings.needs_reference and divergence is None:
        raise ConfigError("credit.kl > 0 needs a reference policy to measure the divergence from; set credit.kl = 0")
    return get(settings.type)(trees, settings, divergence)
