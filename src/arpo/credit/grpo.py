"""GRPO: every token of a trajectory carries the trajectory's group-normalised reward."""

import numpy as np

from arpo.credit.base import Credit, leaf_advantages, register, spread
from arpo.credit.settings import CreditSettings
from arpo.tree import RolloutTree


@register("grpo")
def grpo(tree: RolloutTree, settings: CreditSettings) -> Credit:
    """A = (R - mean R) / (std R + epsilon), the same on all of a trajectory's policy nodes."""
    advantage_M, count_S = leaf_advantages(tree, settings)
    return spread(tree, settings, ~np.isnan(advantage_M), count_S, lambda m, _node: float(advantage_M[m]))
