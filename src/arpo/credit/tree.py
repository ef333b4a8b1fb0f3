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

Exact if what came before a fork decides whether it opens. Where places that no branch took are filled from the prompt,
these top-ups depend on what the first roots did. So N is the number of first roots, a top-up weighs 1 / N like one of
them, whatever their number, and the baseline of what the first roots sampled is made of first roots alone (V_0 too); a
top-up may be compared with all. Every term then points the right way; the sum grows with the top-ups, by 1 + their
mean number / N, which only scales the gradient.
On a group without forks this is leave-one-out (`rloo`) with weights 1/N.
Source: leave-one-out after Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; the weights are those
of splitting in rare-event simulation, Kahn and Harris 1951.
"""

from collections.abc import Sequence

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored
from arpo.credit.settings import TreeCredit
from arpo.tree import RolloutTree


@register("tree")
def tree_credit(tree: RolloutTree, settings: TreeCredit) -> Credit:
    """Value V_e - B_e; weight w_e, divided over the copies of e so that together they weigh w_e."""
    scored = Scored.of(tree)
    late = _top_ups(scored)
    roots = scored.children[0]
    first = [root for root in roots if root not in late] or list(roots)
    value_S = scored.child_mean(scored.reward_M)
    weight_S = splitting_weights(scored, 1 / max(len(first), 1))
    advantage_S = _advantage(weight_S, value_S, first)
    if late:
        compared_S = _advantage(weight_S, value_S, roots)
        advantage_S[late] = compared_S[late]
    return scored.spread(weight_S / np.maximum(scored.copies, 1.0), node_S=advantage_S)


def _top_ups(scored: Scored) -> list[int]:
    """Nodes of the kept top-ups."""
    tree = scored.tree
    paths = scored.paths[len(tree.leaves) - tree.top_ups :]
    return [node for path in paths for node in path[1:] if scored.copies[node] > 0]


def _advantage(weight_S: np.ndarray, value_S: np.ndarray, roots: Sequence[int]) -> np.ndarray:
    """V_e - (sum of w V over `roots` - w_e V_e) / (their weight - w_e), float64 `[S]`; 0 where none lies outside e."""
    own = list(roots)
    outside_S = weight_S[own].sum() - weight_S
    baseline_S = (weight_S[own] @ value_S[own] - weight_S * value_S) / np.where(outside_S > 1e-9, outside_S, 1.0)
    return np.where(outside_S > 1e-9, value_S - baseline_S, 0.0)


def splitting_weights(scored: Scored, root: float) -> np.ndarray:
    """w of every node, float64 `[S]`: `root` at each root, equal parts of the parent's below; 0 where none is kept."""
    weight_S = np.zeros(len(scored.children), np.float64)
    weight_S[0] = root * len(scored.children[0])
    for node, kids in enumerate(scored.children):
        weight_S[list(kids)] = weight_S[node] / max(len(kids), 1)
    return weight_S
