"""The gap between the program that samples and the program that trains.

Both hold the same weights, but other kernels and another precision give a token another probability, now and then a
very different one; then the data are off-policy before the first step. Where the trainer's own log-probs count as the
old policy's, rho = old policy / sampler is the importance weight that the ratio policy / old policy leaves out. It is
applied truncated, w = min(rho, C), which bounds the variance at the price of a small bias; a trajectory whose tokens
disagree too much on the whole is better dropped. The gap is reported whether or not anything is done about it.

Where the sampler's log-probs are the old policy's, the ratio is policy / sampler and nothing is left to correct: rho is
1 everywhere.

Shapes: R trajectories, p tokens in the loss of one of them.
Sources: Ionides 2008, "Truncated Importance Sampling"; Yao et al. 2025, "Your Efficient RL Framework Secretly Brings
You Off-Policy RL Training" (the weight on each token); Schulman 2020, "Approximating KL Divergence" (rho - ln rho - 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arpo.learn.settings import LossBase

_LIMIT = 20.0
"""|ln rho| is held below this, so that one broken token gives a large number and not an infinite one."""


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    """`keep_R`: bool `[R]`, whether a trajectory stays in the loss. `weights`: w of each token, float64 `[p]` for each
    trajectory, to multiply its advantages by. `metrics`: under the names of the metrics file."""

    keep_R: np.ndarray
    weights: list[np.ndarray]
    metrics: dict[str, float]


def mismatch(old: Sequence[np.ndarray], sampler: Sequence[np.ndarray], settings: LossBase) -> Mismatch:
    """Compare log-probs `[p]` of each trajectory's tokens in the loss under old policy and sampler.

    Weights are 1 without `settings.mismatch_cap`, all trajectories stay without `settings.mismatch_reject`. Metrics:
    `mismatch/kl` (mean of rho - ln rho - 1 over tokens, an estimate of KL(sampler || old policy)),
    `mismatch/ratio_max`, `mismatch/rejected_frac` (of the trajectories), `mismatch/capped_frac` (of the tokens).
    """
    gaps = [np.clip(_float(o) - _float(s), -_LIMIT, _LIMIT) for o, s in zip(old, sampler, strict=True)]
    terms = [np.exp(gap) - gap - 1 for gap in gaps]
    reject = np.inf if settings.mismatch_reject is None else settings.mismatch_reject
    keep_R = np.array([len(term) == 0 or not term.mean() > reject for term in terms], bool)
    ratio_N = np.exp(np.concatenate(gaps)) if gaps else np.zeros(0)
    cap = settings.mismatch_cap
    metrics = {
        "mismatch/kl": _mean(np.concatenate(terms) if terms else ratio_N),
        "mismatch/ratio_max": float(ratio_N.max()) if len(ratio_N) else 1.0,
        "mismatch/rejected_frac": _mean(~keep_R),
        "mismatch/capped_frac": 0.0 if cap is None else _mean(ratio_N > cap),
    }
    return Mismatch(keep_R, [np.ones(len(gap)) if cap is None else np.exp(gap).clip(max=cap) for gap in gaps], metrics)


def _float(logp_p: np.ndarray) -> np.ndarray:
    return np.asarray(logp_p, np.float64)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
