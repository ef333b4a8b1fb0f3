"""The clipped surrogate: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), for A < 0 not below dual_clip * A.

Written by sign it is A * min(r, 1 + clip_high) for A > 0 and A * min(max(r, 1 - clip_low), dual_clip) for A < 0, so
the copies of a token need only the sums of either sign. Five families share it; they differ in their defaults, their
aggregation and the credit they are trained with.
Sources: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7 (clip); Ye et al. 2020, "Mastering
Complex Control in MOBA Games with Deep Reinforcement Learning", equation 2 (dual clip); Shao et al. 2024,
"DeepSeekMath", equation 3 (GRPO); Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"
(separate bounds, token mean); Liu et al. 2025, "Understanding R1-Zero-Like Training" (Dr. GRPO: constant normaliser);
Hu 2025, "REINFORCE++".
"""

import math

import torch

from arpo.learn.losses.base import Family, TokenInputs, log_ratio, register
from arpo.learn.settings import ClippedLoss


def up(ratio: torch.Tensor, settings: ClippedLoss) -> torch.Tensor:
    """The objective per unit of positive advantage."""
    return ratio.clamp(max=1 + settings.clip_high)


def down(ratio: torch.Tensor, settings: ClippedLoss) -> torch.Tensor:
    """The objective per unit of negative advantage."""
    return ratio.clamp(1 - settings.clip_low, settings.dual_clip)


def beyond(ratio_P: torch.Tensor, advantage_P: torch.Tensor, settings: ClippedLoss) -> dict[str, torch.Tensor]:
    """`low`: A < 0 below 1 - clip_low; `high`: A > 0 above 1 + clip_high; `dual`: A < 0 above dual_clip."""
    negative_P = advantage_P < 0
    return {
        "low": negative_P & (ratio_P < 1 - settings.clip_low),
        "high": (advantage_P > 0) & (ratio_P > 1 + settings.clip_high),
        "dual": negative_P & (ratio_P > (math.inf if settings.dual_clip is None else settings.dual_clip)),
    }


def objective(tokens: TokenInputs, settings: ClippedLoss) -> torch.Tensor:
    """gain * up(r) + cost * down(r), `[U]`."""
    ratio_U = log_ratio(tokens.logp_U, tokens.old_logp_U, settings.max_ratio).exp()
    return tokens.gain_U * up(ratio_U, settings) + tokens.cost_U * down(ratio_U, settings)


def clipped(tokens: TokenInputs, settings: ClippedLoss) -> dict[str, torch.Tensor]:
    """Copies whose token ratio lies beyond a bound that acts on their sign, `[P]`."""
    ratio_U = log_ratio(tokens.logp_U, tokens.old_logp_U).exp()
    return beyond(ratio_U[tokens.copies.index_P], tokens.copies.advantage_P, settings)


for _name in ("clip", "grpo", "dapo", "dr_grpo", "reinforce++"):
    register(_name, Family(objective, clipped))
