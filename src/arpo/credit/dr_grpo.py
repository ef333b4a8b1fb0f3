"""Dr. GRPO: the reward against the group's mean, divided by nothing.

    A_l = R_l - mean R

Division by the group's standard deviation weighs up questions that are nearly always or nearly never answered; without
it every question counts alike. The other half of the method, a constant length normaliser, belongs to the loss
(`loss.type = "dr_grpo"`).
Source: Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.
"""

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored
from arpo.credit.settings import DrGrpoCredit
from arpo.tree import RolloutTree


@register("dr_grpo")
def dr_grpo(tree: RolloutTree, settings: DrGrpoCredit) -> Credit:
    """The same advantage on all of a trajectory's policy nodes."""
    scored = Scored.of(tree)
    advantage_M = scored.reward_M - scored.mean_through(scored.reward_M)[0]
    return scored.spread(scored.counting(settings.shared_prefix_average), own_M=advantage_M)
