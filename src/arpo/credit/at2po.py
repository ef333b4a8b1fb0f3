"""AT2PO: the value of a turn is its advantage.

    A_n = V_n        V_leaf = (R - mean R) / (std R + epsilon)        V_n = mean of the children's V

The leaves are normalised in the group first, which is the baseline; then values go up the tree, every branch of a fork
counting the same. That is what tells it from `hard`, which takes the mean over trajectories: there a branch that forked
again counts more.
Source: Zong et al. 2026, "AT2PO: Agentic Turn-based Policy Optimization via Tree Search", turn-wise credit assignment
with node values as advantages. (Its loss clips by turns; here any loss can be combined.)
"""

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import At2poCredit
from arpo.tree import RolloutTree


@register("at2po")
def at2po(tree: RolloutTree, settings: At2poCredit) -> Credit:
    """The same advantage on every copy of a node."""
    scored = Scored.of(tree)
    value_S = scored.child_mean(z_scores(scored.reward_M, settings.epsilon))
    return scored.spread(scored.counting(settings.shared_prefix_average), node_S=value_S)
