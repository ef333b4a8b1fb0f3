"""TreeRL: a node against the whole group, plus against the fork that it came from.

    A_n = ((V_n - V_root) + (V_n - V_parent)) / sqrt(L_n)

V_n is the mean over the L_n leaves under n of the leave-one-out reward R_l - mean of the others; V_root, that of all
leaves, is 0. A token of n stands in L_n trajectories, and the square root keeps early nodes from outweighing the rest.
Choice made here: the parent is the last fork above, so that it does not matter where an unbranched stretch was cut,
for a window or by a tool's result: all of it carries the same advantage.
Source: Hou et al. 2025, "TreeRL: LLM Reinforcement Learning with On-Policy Tree Search", process supervision from
global and local advantages.
"""

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.rloo import leave_one_out
from arpo.credit.scored import Scored
from arpo.credit.settings import TreeRlCredit
from arpo.tree import RolloutTree


@register("treerl")
def treerl(tree: RolloutTree, settings: TreeRlCredit) -> Credit:
    """The same advantage on every copy of a node."""
    scored = Scored.of(tree)
    value_S = scored.mean_through(leave_one_out(scored))
    local_S = np.zeros(len(value_S))
    for node, kids in enumerate(scored.children):
        for kid in kids:
            local_S[kid] = value_S[kid] - value_S[node] if len(kids) > 1 else local_S[node]
    advantage_S = (value_S - value_S[0] + local_S) / np.sqrt(np.maximum(scored.copies, 1.0))
    return scored.spread(scored.counting(settings.shared_prefix_average), node_S=advantage_S)
