"""Hard credit: a shared token carries the mean advantage of the trajectories through it.

At ratio 1 and equal weights its gradient is soft credit's. Off-policy they part: soft copies of one token clip each by
its own sign, the hard copies all alike.
Source: Dong et al. 2025, "Agentic Reinforced Policy Optimization", the hard setting of advantage attribution.
"""

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import HardCredit
from arpo.tree import RolloutTree


@register("hard")
def hard(tree: RolloutTree, settings: HardCredit) -> Credit:
    """Mean of A = (R - mean R) / (std R + epsilon) over the kept trajectories through a node, on every copy."""
    scored = Scored.of(tree)
    mean_S = scored.mean_through(z_scores(scored.reward_M, settings.epsilon))
    return scored.spread(scored.counting(settings.shared_prefix_average), node_S=mean_S)
