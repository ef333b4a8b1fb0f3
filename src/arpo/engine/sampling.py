"""One token per row from its logits, with its exact log-prob and the exact entropy of its distribution.

A draw is the inverse of the cumulative distribution at a uniform number that belongs to (seed of the path, place in the
segment), so it does not depend on which rows happen to run together. Log-prob and entropy are those of the whole
vocabulary at the sampling temperature (temperature 1 where the row is greedy), whatever `top_p` leaves to choose from:
they say what the policy thought, which is what the entropy rule and the importance ratio are about.

Shapes: B rows, V vocabulary.
"""

import numpy as np
import torch


def draw(
    logits_BV: torch.Tensor,
    temperature_B: np.ndarray,
    top_p_B: np.ndarray,
    uniform_B: np.ndarray,
    *,
    entropy: bool = True,
) -> np.ndarray:
    """Sample every row: float64 `[3, B]`, the token ids, log-probs and entropies (nats; zeros without `entropy`).

    `temperature_B` 0 takes the most likely token; `uniform_B` in [0, 1). Float64 logits are sampled in float64, all
    others in float32. Raises FloatingPointError on NaN logits.
    """
    greedy_B = temperature_B == 0
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    if (temperature_B != 1).any():
        logits_BV = logits_BV / _to(np.where(greedy_B, 1.0, temperature_B), logits_BV)[:, None]
    logp_BV = torch.log_softmax(logits_BV, -1)
    p_BV = logp_BV.exp()
    token_B = logits_BV.argmax(-1) if greedy_B.all() else _choose(p_BV, top_p_B, uniform_B)
    if greedy_B.any() and not greedy_B.all():
        token_B = torch.where(torch.from_numpy(greedy_B).to(token_B.device), logits_BV.argmax(-1), token_B)
    logp_B = logp_BV.gather(-1, token_B[:, None])[:, 0]
    entropy_B = _entropy(p_BV, logp_BV) if entropy else torch.zeros_like(logp_B)
    drawn = torch.stack([token_B.to(logp_B.dtype), logp_B, entropy_B]).cpu().numpy().astype(np.float64)
    if np.isnan(drawn).any():
        raise FloatingPointError("the model's logits hold NaN; its weights are broken (lower the learning rate?)")
    return drawn


def _entropy(p_BV: torch.Tensor, logp_BV: torch.Tensor) -> torch.Tensor:
    """-sum p log p from what the draw has computed anyway.

    A product and a sum cost a tenth of `entr`, which takes V logarithms per row. They give NaN (0 times infinity) where
    a logit is minus infinity, which few models do; only those rows are computed the long way.
    """
    entropy_B = -(p_BV * logp_BV).sum(-1)
    broken_B = entropy_B.isnan()
    if broken_B.any():
        entropy_B[broken_B] = torch.special.entr(p_BV[broken_B]).sum(-1)
    return entropy_B


def _choose(p_BV: torch.Tensor, top_p_B: np.ndarray, uniform_B: np.ndarray) -> torch.Tensor:
    """The token at which the cumulative distribution exceeds the uniform number, among the nucleus of `top_p`."""
    if (top_p_B >= 1).all():
        return _invert(p_BV, uniform_B)
    sorted_BV, order_BV = p_BV.sort(stable=True, dim=-1, descending=True)
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    nucleus_BV = sorted_BV * (before_BV < _to(top_p_B, p_BV)[:, None])
    return order_BV.gather(-1, _invert(nucleus_BV, uniform_B)[:, None])[:, 0]


def _invert(p_BV: torch.Tensor, uniform_B: np.ndarray) -> torch.Tensor:
    """First index whose cumulative weight exceeds u times the total: never one of weight 0, never past the end."""
    wide = torch.float32 if p_BV.device.type == "mps" else torch.float64
    cdf_BV = p_BV.to(wide).cumsum(-1)
    total_B1 = cdf_BV[:, -1:]
    below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
    target_B1 = torch.minimum(_to(uniform_B, cdf_BV)[:, None] * total_B1, below_B1)
    return torch.searchsorted(cdf_BV, target_B1, right=True)[:, 0].clamp_(max=p_BV.shape[-1] - 1)


def _to(values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device=like.device, dtype=like.dtype)
