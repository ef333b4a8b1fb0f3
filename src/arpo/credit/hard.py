"""Hard credit: a shared token carries the mean advantage of the trajectories through it.

At ratio 1 and equal weights its gradient is soft credit's. Off-policy they part: soft copies of one token clip each by
its own sign, the hard copies all alike.
Source: Dong et al. 2025, "Agentic Reinforced Policy Optimization", the hard setting of advantage attribution.
"""

import numpy as np

from arpo.credit.base import Credit, leaf_advantages, register, spread, sum_through
from arpo.credit.settings import CreditSettings
from arpo.tree import RolloutTree


@register("hard")
def hard(tree: RolloutTree, settings: CreditSettings) -> Credit:
    """Mean of A over the kept trajectories through a node, the same on every copy."""
    advantage_M, count_S = leaf_advantages(tree, settings)
    kept_M = ~np.isnan(advantage_M)
    mean_S = sum_through(tree, np.where(kept_M, advantage_M, 0.0)) / np.maximum(count_S, 1.0)
    return spread(tree, settings, kept_M, count_S, lambda _m, node: float(mean_S[node]))
