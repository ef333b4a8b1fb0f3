"""CISPO: the ratio weighs the policy gradient and is itself clipped, so no token is let go of.

Maximised is stop-gradient(min(r, 1 + clip_high)) * A * ln policy. Only the upper bound is used, as its authors did. The
loss's value says nothing by itself (it is a log-probability, weighted); its gradient does.
Source: MiniMax 2025, "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", equations 4 and 5.
"""

import torch

from arpo.learn.losses.base import Family, TokenInputs, log_ratio, register
from arpo.learn.settings import CispoLoss


def objective(tokens: TokenInputs, settings: CispoLoss) -> torch.Tensor:
    """(gain + cost) * weight * ln policy, `[U]`: the weight does not ask for the sign."""
    ratio_U = log_ratio(tokens.logp_U.detach(), tokens.old_logp_U).exp()
    return (tokens.gain_U + tokens.cost_U) * ratio_U.clamp(max=1 + settings.clip_high) * tokens.logp_U


def clipped(tokens: TokenInputs, settings: CispoLoss) -> dict[str, torch.Tensor]:
    """`high`: copies whose weight is held at 1 + clip_high, `[P]`."""
    high_U = log_ratio(tokens.logp_U, tokens.old_logp_U).exp() > 1 + settings.clip_high
    return {"high": high_U[tokens.copies.index_P]}


register("cispo", Family(objective, clipped))
