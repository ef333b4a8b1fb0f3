"""GRPO: every token of a trajectory carries the trajectory's group-normalised reward.

Source: Shao et al. 2024, "DeepSeekMath", section 4.1.2 (outcome supervision).
"""

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import NormalisedCredit
from arpo.tree import RolloutTree


@register("grpo")
def grpo(tree: RolloutTree, settings: NormalisedCredit) -> Credit:
    """A = (R - mean R) / (std R + epsilon), the same on all of a trajectory's policy nodes."""
    scored = Scored.of(tree)
    advantage_M = z_scores(scored.reward_M, settings.epsilon)
    return scored.spread(scored.counting(settings.shared_prefix_average), own_M=advantage_M)
