"""AEPO: GRPO's advantage, larger on the tokens where the policy was uncertain.

    A_(l, t) = (R_l - mean R) / (std R + epsilon) * (1 + a * z(H_t))        z(x) = (x - mean) / (std + epsilon)

H_t is the entropy that was measured when the token was sampled; a is `entropy_scale`.
Choices made here: z is taken over the policy tokens of the tree, each as often as the loss counts it (the published
code takes it over whichever tokens share a micro-batch, so that its size would change the result); and the factor stops
at 0, so that a token far below the mean is left alone instead of being pushed the wrong way.
Source: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization", entropy-aware advantage estimation.
"""

from dataclasses import replace

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.grpo import grpo
from arpo.credit.scored import Scored, z_scores
from arpo.credit.settings import AepoCredit
from arpo.tree import RolloutTree


@register("aepo")
def aepo(tree: RolloutTree, settings: AepoCredit) -> Credit:
    """GRPO's advantage times the token's factor, per token."""
    scored, credit = Scored.of(tree), grpo(tree, settings)
    factors = entropy_factors(scored, settings)
    values: list[np.ndarray | None] = [None] * len(credit.values)
    for m, path in enumerate(scored.paths):
        value = credit.values[m]
        if value is not None:
            values[m] = np.concatenate([a * factors[node] for a, node in zip(value, path, strict=True)])
    return replace(credit, values=tuple(values), per_token=True)


def entropy_factors(scored: Scored, settings: AepoCredit) -> list[np.ndarray]:
    """max(0, 1 + a * z(H)) of every token, per node float64 `[T]`; 0 on what the policy did not sample."""
    segments = scored.tree.segments
    entropies = [
        segment.entropies.astype(np.float64) if segment.is_policy and copies else np.full(len(segment), np.nan)
        for segment, copies in zip(segments, scored.copies, strict=True)
    ]
    length_S = [len(segment) for segment in segments]
    weight = np.repeat(scored.copies * scored.counting(settings.shared_prefix_average), length_S)
    z = z_scores(np.concatenate(entropies), settings.epsilon, weight)
    factor = np.nan_to_num(np.maximum(0.0, 1.0 + settings.entropy_scale * z), nan=0.0)
    return np.split(factor, np.cumsum(length_S)[:-1])
