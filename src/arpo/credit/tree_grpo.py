"""Tree-GRPO: a trajectory against its whole group, plus against its own tree.

    A_l = z(R_l in the group) + z(R_l in its tree)        z(x) = (x - mean) / (std + epsilon)

A tree is the subtree of a root: what was started from the prompt once and then branched. Trajectories of one tree share
a prefix, so their comparison says which continuation was better; that of the group says which start was.
Choice made here: a tree of one trajectory compares with nothing, its second term is 0.
Source: Ji et al. 2025, "Tree Search for LLM Agent Reinforcement Learning", intra-tree and inter-tree advantages.
"""

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import TreeGrpoCredit
from arpo.tree import RolloutTree


@register("tree_grpo")
def tree_grpo(tree: RolloutTree, settings: TreeGrpoCredit) -> Credit:
    """The same advantage on all of a trajectory's policy nodes."""
    scored = Scored.of(tree)
    advantage_M = z_scores(scored.reward_M, settings.epsilon)
    for root in np.unique(scored.roots):
        inside = scored.roots == root
        advantage_M[inside] += z_scores(scored.reward_M[inside], settings.epsilon)
    return scored.spread(scored.counting(settings.shared_prefix_average), own_M=advantage_M)
