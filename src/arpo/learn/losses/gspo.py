"""GSPO: one ratio per trajectory, the geometric mean of its tokens' ratios.

s = exp(mean of ln r over the trajectory's tokens in the loss). In the token form used here each token's ratio is
stop-gradient(s) * policy / stop-gradient(policy): its value is s, its derivative that of the token alone. With one
advantage for the whole trajectory the gradient is that of s itself; with an advantage per node, as trees give, it is
still defined. A shared token has another s in each trajectory, so this is computed copy by copy.
Source: Zheng et al. 2025, "Group Sequence Policy Optimization", equations 7 and 13 to 15 (GSPO-token).

Shapes: R trajectories of the pack; U, P as in `base`.
"""

import torch

from arpo.learn.losses.base import Family, TokenInputs, limited, passing, register
from arpo.learn.losses.clipped import beyond, down, up
from arpo.learn.settings import GspoLoss


def sequence_log_ratio(tokens: TokenInputs) -> torch.Tensor:
    """ln s of the trajectory that each copy stands in, `[P]`, without gradient."""
    copies = tokens.copies
    gap_P = (tokens.logp_U.detach() - tokens.old_logp_U)[copies.index_P]
    total_R = gap_P.new_zeros(copies.rows).index_add(0, copies.row_P, gap_P)
    count_R = torch.bincount(copies.row_P, minlength=copies.rows).clamp(min=1)
    return (total_R / count_R)[copies.row_P]


def objective(tokens: TokenInputs, settings: GspoLoss) -> torch.Tensor:
    """The copies' coefficient * min(s A, clip(s) A), summed to their tokens, `[U]`."""
    copies = tokens.copies
    gain_P = copies.coefficient_P * copies.advantage_P.clamp(min=0)
    cost_P = copies.coefficient_P * copies.advantage_P.clamp(max=0)
    token_P = passing(tokens.logp_U)[copies.index_P]
    ratio_P = limited(sequence_log_ratio(tokens) + token_P, settings.max_ratio).exp()
    objective_P = gain_P * up(ratio_P, settings) + cost_P * down(ratio_P, settings)
    return torch.zeros_like(tokens.logp_U).index_add(0, copies.index_P, objective_P)


def clipped(tokens: TokenInputs, settings: GspoLoss) -> dict[str, torch.Tensor]:
    """Copies whose trajectory's ratio lies beyond a bound that acts on their sign, `[P]`."""
    return beyond(limited(sequence_log_ratio(tokens)).exp(), tokens.copies.advantage_P, settings)


register("gspo", Family(objective, clipped))
