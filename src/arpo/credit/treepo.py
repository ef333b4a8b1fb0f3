"""TreePO: a trajectory against every subtree that it lies in.

    A_l = sum over subtrees g of n_g (R_l - mean_g R) / sum over g of n_g        n_g: trajectories in g

The subtrees are nested, from the whole group down to the smallest one in which l still has company; larger ones count
more, because their means are surer.
Choices made here: a subtree counts once, at the fork that splits it, so that it does not matter into how many segments
an unbranched stretch was cut (the published code counts one per fixed-length segment). Nothing is divided by a
standard deviation (there, the whole batch's advantages are whitened afterwards).
Source: Li et al. 2025, "TreePO: Bridging the Gap of Policy Optimization and Efficacy and Inference Efficiency with
Heuristic Tree-based Modeling", tree-based advantage with subgroup-size weights.
"""

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored
from arpo.credit.settings import TreePoCredit
from arpo.tree import RolloutTree


@register("treepo")
def treepo(tree: RolloutTree, settings: TreePoCredit) -> Credit:
    """The same advantage on all of a trajectory's policy nodes."""
    scored = Scored.of(tree)
    size_S = np.where([len(kids) > 1 for kids in scored.children], scored.copies, 0.0)
    mean_S = scored.mean_through(scored.reward_M)
    advantage_M = np.zeros(len(scored.paths))
    for m, path in enumerate(map(list, scored.paths)):
        if size_S[path].any():
            advantage_M[m] = np.average(scored.reward_M[m] - mean_S[path], weights=size_S[path])
    return scored.spread(scored.counting(settings.shared_prefix_average), own_M=advantage_M)
