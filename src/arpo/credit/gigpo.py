"""GiGPO: a trajectory against its group, plus each step against the other steps taken from the same state.

    A_(l, n) = z(R_l in the group) + step_weight * z(Q_n among the children of n's parent)

Q_n is the mean reward of the trajectories through n. States are the same only if their whole context is: the children
of one node. The roots are such a group too, as all trajectories' first steps are in the paper. A step that had no
alternative gets the first term alone.
Choices made here: the members of a step group are the continuations, each once, not the trajectories through them, so a
branch that forked again does not count twice. A turn is one step: what the policy goes on to say after a cut for the
entropy window belongs to the step, unless it forked there. Returns are not discounted: the only reward is at the end.
Source: Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", episode and step advantages.
"""

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import GigpoCredit
from arpo.tree import RolloutTree


@register("gigpo")
def gigpo(tree: RolloutTree, settings: GigpoCredit) -> Credit:
    """The trajectory's own advantage, plus that of the step to which the node belongs."""
    scored = Scored.of(tree)
    return scored.spread(
        scored.counting(settings.shared_prefix_average),
        own_M=z_scores(scored.reward_M, settings.epsilon),
        node_S=settings.step_weight * step_advantages(scored, settings.epsilon),
    )


def step_advantages(scored: Scored, epsilon: float) -> np.ndarray:
    """z of every node's mean reward among its siblings, float64 `[S]`; 0 where it has none."""
    mean_S = scored.mean_through(scored.reward_M)
    policy_S = [segment.is_policy for segment in scored.tree.segments]
    step_S = np.zeros(len(mean_S))
    for node, kids in enumerate(scored.children):
        if len(kids) > 1:
            step_S[list(kids)] = z_scores(mean_S[list(kids)], epsilon)
        elif kids and policy_S[node] and policy_S[kids[0]]:
            step_S[kids[0]] = step_S[node]
    return step_S
