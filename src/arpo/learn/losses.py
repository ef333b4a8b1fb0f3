"""The clipped surrogate, token by token, and how tokens are averaged.

Two pure steps. `token_loss` turns log-probabilities and advantages into one loss per token; `coefficients` turns the
weights of a whole mini-batch into one factor per token. Their dot product is the loss, so it can be summed over any
division into micro-batches. The ratio is policy / sampler: the log-probabilities that the tree carries are the
sampler's own, and no further importance weight is due.

Shapes: P tokens. Dtype: that of `logp_P` (float64 in, float64 out).
Sources: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7; Ye et al. 2020, "Mastering Complex
Control in MOBA Games", equation 2 (dual clip); Yu et al. 2025, "DAPO" (clip-higher, token mean); Schulman 2020,
"Approximating KL Divergence" (k3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from arpo.learn.settings import LossSettings

LOG_RATIO_LIMIT = 20.0
"""|ln r| is held below this (e^20 is 5e8): should exp overflow, the zero gradient of a clipped token would be NaN."""


def log_ratio(logp_P: torch.Tensor, old_logp_P: torch.Tensor, max_ratio: float | None = None) -> torch.Tensor:
    """ln r, truncated at ln `max_ratio` and at +-LOG_RATIO_LIMIT; no gradient flows beyond."""
    ceiling = LOG_RATIO_LIMIT if max_ratio is None else min(LOG_RATIO_LIMIT, math.log(max_ratio))
    return (logp_P - old_logp_P).clamp(-LOG_RATIO_LIMIT, ceiling)


def surrogate(ratio_P: torch.Tensor, advantage_P: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """What is maximised: min(r A, clip(r) A); where A < 0 and dual clip is on, at least c A."""
    clipped_P = ratio_P.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    objective_P = torch.minimum(ratio_P * advantage_P, clipped_P * advantage_P)
    if settings.dual_clip is None:
        return objective_P
    floor_P = torch.where(advantage_P < 0, settings.dual_clip * advantage_P, -torch.inf)
    return torch.maximum(objective_P, floor_P)


def k3(logp_P: torch.Tensor, other_logp_P: torch.Tensor) -> torch.Tensor:
    """Estimate of KL(policy || other) from the policy's own samples: q/p - ln(q/p) - 1, never negative."""
    gap_P = log_ratio(other_logp_P, logp_P)
    return gap_P.exp() - gap_P - 1


@dataclass(frozen=True, slots=True, eq=False)
class TokenInputs:
    """What the loss knows of each token: log-probs under policy, sampler, reference; the policy's entropy in nats."""

    logp_P: torch.Tensor
    old_logp_P: torch.Tensor
    advantage_P: torch.Tensor
    entropy_P: torch.Tensor
    reference_P: torch.Tensor | None = None


def token_loss(tokens: TokenInputs, settings: LossSettings) -> torch.Tensor:
    """-surrogate + kl * k3(policy, reference) - entropy_bonus * H, `[P]`.

    Raises ValueError if `settings.kl` asks for a reference that is not there.
    """
    ratio_P = log_ratio(tokens.logp_P, tokens.old_logp_P, settings.max_ratio).exp()
    loss_P = -surrogate(ratio_P, tokens.advantage_P, settings)
    if settings.kl:
        if tokens.reference_P is None:
            raise ValueError("loss.kl is above 0 but there is no reference model")
        loss_P = loss_P + settings.kl * k3(tokens.logp_P, tokens.reference_P)
    if settings.entropy_bonus:
        loss_P = loss_P - settings.entropy_bonus * tokens.entropy_P
    return loss_P


def coefficients(
    weights: Sequence[np.ndarray], aggregation: Literal["token_mean", "sequence_mean"]
) -> list[np.ndarray]:
    """Each token's factor in the loss; one array per trajectory in and out, float64; together they sum to 1.

    `token_mean`: w / sum of all w. `sequence_mean`: w / (sum of the trajectory's w) / trajectories. A trajectory whose
    weights sum to 0 has no mean: it gets zeros and is not counted.
    """
    sums = np.array([w.sum() for w in weights])
    counted = int((sums > 0).sum())
    if aggregation == "token_mean":
        scales = np.full(len(sums), 1 / sums.sum() if counted else 0.0)
    else:
        scales = np.divide(1, sums * counted, out=np.zeros(len(sums)), where=sums > 0)
    return [w * scale for w, scale in zip(weights, scales, strict=True)]


@torch.no_grad()
def diagnostics(tokens: TokenInputs, coefficient_P: torch.Tensor, settings: LossSettings) -> dict[str, torch.Tensor]:
    """The micro-batch's share of each weighted mean; adding the shares gives the mini-batch's figure.

    `clip_ratio/low`: tokens with A < 0 pushed below 1 - clip_low; `/high`: A > 0 beyond 1 + clip_high; `/dual`: A < 0
    beyond dual_clip. `kl/sampler`: k3 against the sampler; `kl`: against the reference, where there is one.
    """
    ratio_P = log_ratio(tokens.logp_P, tokens.old_logp_P).exp()
    positive, negative = tokens.advantage_P > 0, tokens.advantage_P < 0
    dual_clip = settings.dual_clip if settings.dual_clip is not None else math.inf
    terms = {
        "entropy": tokens.entropy_P,
        "ratio/mean": ratio_P,
        "clip_ratio/low": (negative & (ratio_P < 1 - settings.clip_low)).to(ratio_P.dtype),
        "clip_ratio/high": (positive & (ratio_P > 1 + settings.clip_high)).to(ratio_P.dtype),
        "clip_ratio/dual": (negative & (ratio_P > dual_clip)).to(ratio_P.dtype),
        "kl/sampler": k3(tokens.old_logp_P, tokens.logp_P),
    }
    if tokens.reference_P is not None:
        terms["kl"] = k3(tokens.logp_P, tokens.reference_P)
    return {name: (term * coefficient_P).sum() for name, term in terms.items()}
