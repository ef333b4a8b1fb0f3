"""Tree credit: the unbiased policy gradient of a branched group.

A trajectory that was opened at a fork is not an independent sample, so a flat mean over trajectories favours prefixes
that happened to branch. Splitting weights undo that: each node passes its weight on in equal parts, so that every node,
and every set of nodes which cuts all paths once, estimates the expectation that independent trajectories estimate.
With N roots (those started afresh to fill the group are roots too), b(s) children of node s, R_l the reward of leaf l:

    w_root = 1 / N        w_child = w_s / b(s)        V_leaf = R        V_s = mean of the children's V
    B_e = sum of w_l R_l over the leaves not under e / sum of their w_l
    gradient = sum over nodes e of w_e * grad ln pi(e) * (V_e - B_e)

The baseline leaves out all that follows e, which depends on what was sampled in e; it may use anything else. Because
the weighted rewards under e add up to w_e V_e, and those of all leaves to V_0, the value of the prompt,

    V_e - B_e = (V_e - V_0) / (1 - w_e).

Without a leaf outside e nothing in the group is independent of e but a constant, and a constant would reward e for an
easy prompt. There B_e := V_e: such a node (the trunk of a group with one root, up to its first fork) gets advantage 0.
So a lone trajectory has no say, equal rewards have none, no term of the gradient is biased, and the trunk's own term is
missing: with one root the estimate is of the gradient with the trunk held fixed. Start groups from at least two.

Exact if what came before a fork decides whether it opens, and if N is given. Where unused branches are started afresh
from the prompt, N depends on how much the first roots branched; the covariance of the two remains, of the order of one
over the number of trajectories.
On a group without forks this is leave-one-out (`rloo`) with weights 1/N.
Source: leave-one-out after Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; the weights are those
of splitting in rare-event simulation, Kahn and Harris 1951.
"""

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored
from arpo.credit.settings import TreeCredit
from arpo.tree import RolloutTree


@register("tree")
def tree_credit(tree: RolloutTree, settings: TreeCredit) -> Credit:
    """Value V_e - B_e; weight w_e, divided over the copies of e so that together they weigh w_e."""
    scored = Scored.of(tree)
    weight_S, value_S = splitting_weights(scored), scored.child_mean(scored.reward_M)
    outside_S = scored.copies < scored.copies[0]
    advantage_S = np.where(outside_S, (value_S - value_S[0]) / np.where(outside_S, 1 - weight_S, 1.0), 0.0)
    return scored.spread(weight_S / np.maximum(scored.copies, 1.0), node_S=advantage_S)


def splitting_weights(scored: Scored) -> np.ndarray:
    """w of every node, float64 `[S]`: 1 at the prompt, equal parts of the parent's below; 0 where nothing is kept."""
    weight_S = np.zeros(len(scored.children), np.float64)
    weight_S[0] = 1.0
    for node, kids in enumerate(scored.children):
        weight_S[list(kids)] = weight_S[node] / max(len(kids), 1)
    return weight_S
