"""What a loss sees of a pack of tokens, and how families are looked up.

A token that several trajectories share is there once, with the summed coefficients of its copies. For a loss that is a
function of the token's own ratio this is exact, not an approximation: each copy contributes coefficient * A * up(r)
where A > 0 and coefficient * A * down(r) where A < 0, r is the same in all of them, so two sums say all
there is to know about the copies. A loss that looks at whole trajectories needs the copies themselves.

A family is two functions, what is maximised and which copies were clipped; it is looked up by name, and adding one is
one file, imported in the package's `__init__`.

Shapes: U unique policy tokens of the pack, P their copies in trajectories. Dtype: that of `logp_U`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from arpo.learn.settings import LossBase, LossSettings

LOG_RATIO_LIMIT = 20.0
"""|ln r| is held below this (e^20 is 5e8): should exp overflow, the zero gradient of a clipped token would be NaN."""


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The pack's tokens as its trajectories hold them, one entry per token in the loss and trajectory.

    `index_P`: which of the U tokens; `row_P`: which trajectory, from 0 to `rows` - 1, each of them whole in this pack;
    `coefficient_P` >= 0: the copy's share of the mini-batch's loss (`aggregation.coefficients`).
    """

    index_P: torch.Tensor
    row_P: torch.Tensor
    advantage_P: torch.Tensor
    coefficient_P: torch.Tensor
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class TokenInputs:
    """What the loss knows of each unique token, `[U]`.

    Log-probs under policy, old policy and reference (None: there is none); the policy's entropy in nats. `gain_U` >= 0:
    sum over the copies of coefficient * max(A, 0); `cost_U` <= 0: of coefficient * min(A, 0); `mass_U`: of coefficient.
    """

    logp_U: torch.Tensor
    old_logp_U: torch.Tensor
    entropy_U: torch.Tensor
    reference_U: torch.Tensor | None
    gain_U: torch.Tensor
    cost_U: torch.Tensor
    mass_U: torch.Tensor
    copies: Copies


def limited(log_ratio_U: torch.Tensor, max_ratio: float | None = None) -> torch.Tensor:
    """ln r, truncated at ln `max_ratio` and at +-LOG_RATIO_LIMIT; no gradient flows beyond."""
    ceiling = LOG_RATIO_LIMIT if max_ratio is None else min(LOG_RATIO_LIMIT, math.log(max_ratio))
    return log_ratio_U.clamp(-LOG_RATIO_LIMIT, ceiling)


def log_ratio(logp_U: torch.Tensor, old_logp_U: torch.Tensor, max_ratio: float | None = None) -> torch.Tensor:
    """ln (policy / old policy), truncated as in `limited`."""
    return limited(logp_U - old_logp_U, max_ratio)


def passing(logp_U: torch.Tensor) -> torch.Tensor:
    """Zeros that carry the gradient of `logp_U`: added to the logarithm of a constant, they make it act like policy /
    stop-gradient(policy)."""
    return logp_U - logp_U.detach()


def k3(logp_U: torch.Tensor, other_logp_U: torch.Tensor) -> torch.Tensor:
    """Estimate of KL(policy || other) from the policy's own samples: q/p - ln(q/p) - 1, never negative.

    Source: Schulman 2020, "Approximating KL Divergence".
    """
    gap_U = log_ratio(other_logp_U, logp_U)
    return gap_U.exp() - gap_U - 1


@dataclass(frozen=True, slots=True)
class Family:
    """`objective`: (tokens, the family's settings) -> what is maximised, `[U]`, coefficients applied. `clipped`: name
    to bool `[P]`, the copies on which a bound acts."""

    objective: Callable[[TokenInputs, Any], torch.Tensor]
    clipped: Callable[[TokenInputs, Any], dict[str, torch.Tensor]]


_FAMILIES: dict[str, Family] = {}


def register(name: str, family: Family) -> None:
    """Make a family known as `name`, its settings' `type`. Raises ValueError if the name is taken."""
    if name in _FAMILIES:
        raise ValueError(f"loss {name!r} is registered twice")
    _FAMILIES[name] = family


def family_of(settings: LossSettings) -> Family:
    """The family that these settings belong to."""
    return _FAMILIES[settings.type]


def regulariser(tokens: TokenInputs, settings: LossBase) -> torch.Tensor:
    """kl * k3(policy, reference) - entropy_bonus * H, `[U]`, before coefficients.

    Raises ValueError if `settings.kl` asks for a reference that is not there.
    """
    term_U = torch.zeros_like(tokens.old_logp_U)
    if settings.kl:
        if tokens.reference_U is None:
            raise ValueError("loss.kl is above 0 but there is no reference model")
        term_U = term_U + settings.kl * k3(tokens.logp_U, tokens.reference_U)
    if settings.entropy_bonus:
        term_U = term_U - settings.entropy_bonus * tokens.entropy_U
    return term_U
