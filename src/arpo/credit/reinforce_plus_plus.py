"""REINFORCE++: discounted returns of every token, normalised over the whole batch.

    r_t = - kl * ln(pi_old / pi_ref)_t, plus R_l at the last token        G_t = r_t + gamma * G_(t + 1)
    A_t = (G_t - mean G) / (std G + epsilon)

The moments are over all policy tokens of all trajectories of the batch, not of one prompt: with few trajectories per
prompt a group's own standard deviation is noise that correlates with its rewards. `group_mean` takes the group's mean
off R first, the paper's variant for several trajectories per prompt, without which an easy prompt is pushed up whole.
Choices made here: time counts policy tokens only (a long tool result discounts nothing); a shared token stands in the
moments once per trajectory through it, as it does in the loss, or once in all with `shared_prefix_average`; the
divergence is the plain logarithm of the ratio (k1), of the policy that counts as old.
Source: Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization".

Shapes: T tokens of a path, p of them the policy's.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from arpo.credit.base import Credit, Divergence, register_batch
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import ReinforcePlusPlusCredit
from arpo.tree import RolloutTree


@register_batch("reinforce++")
def reinforce_plus_plus(
    trees: Sequence[RolloutTree], settings: ReinforcePlusPlusCredit, divergence: Divergence | None
) -> list[Credit]:
    """Advantages per token; the batch is all of `trees`."""
    views = [Scored.of(tree) for tree in trees]
    credits = [view.spread(view.counting(settings.shared_prefix_average)) for view in views]
    kept = [(number, m) for number, view in enumerate(views) for m in np.flatnonzero(view.kept_M).tolist()]
    returns = [
        _returns(views[number], m, settings, divergence[number] if divergence and settings.kl else None)
        for number, m in kept
    ]
    weights = [_per_token(views[number], m, credits[number]) for number, m in kept]
    values: list[list[np.ndarray | None]] = [[None] * len(credit.values) for credit in credits]
    for (number, m), value in zip(kept, _normalised(returns, weights, settings.epsilon), strict=True):
        values[number][m] = value
    return [replace(credit, values=tuple(own), per_token=True) for credit, own in zip(credits, values, strict=True)]


def _returns(
    view: Scored, m: int, settings: ReinforcePlusPlusCredit, divergence: Sequence[np.ndarray] | None
) -> np.ndarray:
    """G of every token of trajectory `m`, `[T]`; NaN on what the policy did not sample."""
    path = view.tree.path(view.tree.leaves[m])
    reward_p = np.zeros(int(path.policy_T.sum()))
    if divergence is not None:
        reward_p -= settings.kl * np.concatenate([divergence[node] for node in path.nodes])
    reward_p[-1:] += _reward(view, m, settings.group_mean)
    return_T = np.full(len(path), np.nan)
    backwards = accumulate(reward_p[::-1].tolist(), lambda later, now: now + settings.gamma * later)
    return_T[path.policy_T] = list(backwards)[::-1]
    return return_T


def _reward(view: Scored, m: int, group_mean: bool) -> float:
    if group_mean:
        return float(view.reward_M[m] - view.mean_through(view.reward_M)[0])
    return float(view.tree.rewards[m] or 0.0)


def _per_token(view: Scored, m: int, credit: Credit) -> np.ndarray:
    """A kept trajectory's weights, `[T]`."""
    weight = credit.weights[m]
    assert weight is not None
    return np.repeat(weight, [len(view.tree.segments[node]) for node in view.paths[m]])


def _normalised(returns: Sequence[np.ndarray], weights: Sequence[np.ndarray], epsilon: float) -> list[np.ndarray]:
    """z over the tokens of all trajectories together, one array per trajectory; 0 where the return is NaN."""
    if not returns:
        return []
    z = np.nan_to_num(z_scores(np.concatenate(returns), epsilon, np.concatenate(weights)), nan=0.0)
    return np.split(z, np.cumsum([len(array) for array in returns])[:-1])
