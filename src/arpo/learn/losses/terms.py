"""A family's objective and the regularisers as one loss per token, and what is worth knowing about it."""

import torch

from arpo.learn.losses.base import TokenInputs, family_of, k3, log_ratio, regulariser
from arpo.learn.settings import LossSettings


def loss_terms(tokens: TokenInputs, settings: LossSettings) -> torch.Tensor:
    """-objective + mass * (kl * k3(policy, reference) - entropy_bonus * H), `[U]`.

    Their sum over all packs of a mini-batch is its loss. Raises ValueError if `settings.kl` asks for a reference that
    is not there.
    """
    return tokens.mass_U * regulariser(tokens, settings) - family_of(settings).objective(tokens, settings)


@torch.no_grad()
def diagnostics(tokens: TokenInputs, settings: LossSettings, total_mass: float = 1.0) -> dict[str, torch.Tensor]:
    """The pack's share of each weighted mean over the mini-batch; adding up the packs' shares gives the figure.

    `total_mass`: the sum of all coefficients of the mini-batch; it is 1 for the means, not for `constant` and
    `group_sum`. `clip_ratio/*`: copies on which that bound of the family acts. `kl/sampler` or `kl/trainer`: k3 of the
    old policy (`settings.old`) against the policy; `kl`: of the policy against the reference, where there is one.
    """
    terms = {
        "entropy": tokens.entropy_U,
        "ratio/mean": log_ratio(tokens.logp_U, tokens.old_logp_U).exp(),
        f"kl/{settings.old}": k3(tokens.old_logp_U, tokens.logp_U),
    }
    if tokens.reference_U is not None:
        terms["kl"] = k3(tokens.logp_U, tokens.reference_U)
    shares = {name: (term_U * tokens.mass_U).sum() for name, term_U in terms.items()}
    for name, acts_P in family_of(settings).clipped(tokens, settings).items():
        shares[f"clip_ratio/{name}"] = (acts_P * tokens.copies.coefficient_P).sum()
    return {name: share / total_mass for name, share in shares.items()}
