"""AEPO: clipped tokens of positive advantage keep the gradient that they have at the bound.

Where PPO lets go of a token once r exceeds 1 + clip_high, which are mostly tokens the policy was unsure of, the
objective here stays at the same value but as (1 + clip_high) * policy / stop-gradient(policy): its derivative with
respect to ln policy is 1 + clip_high, however far r has gone. Everything else is the clipped surrogate. `max_ratio`
does not take this gradient away.
Source: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization" (entropy clipping-balanced mechanism).
"""

import torch

from arpo.learn.losses.base import Family, TokenInputs, log_ratio, passing, register
from arpo.learn.losses.clipped import clipped, down
from arpo.learn.settings import AepoLoss


def objective(tokens: TokenInputs, settings: AepoLoss) -> torch.Tensor:
    """gain * up(r) + cost * down(r), `[U]`, with up(r) held at 1 + clip_high in value alone."""
    bound = 1 + settings.clip_high
    outside_U = log_ratio(tokens.logp_U.detach(), tokens.old_logp_U).exp() > bound
    ratio_U = log_ratio(tokens.logp_U, tokens.old_logp_U, settings.max_ratio).exp()
    up_U = torch.where(outside_U, bound * passing(tokens.logp_U).exp(), ratio_U)
    return tokens.gain_U * up_U + tokens.cost_U * down(ratio_U, settings)


register("aepo", Family(objective, clipped))
