"""RLOO: the reward against the mean of the group's other trajectories.

    A_l = R_l - mean of R over the others = (R_l - mean R) * n / (n - 1)        n trajectories with a reward

A baseline that does not contain the trajectory's own reward leaves the gradient of independent trajectories unbiased,
without a critic. Branches are not independent; `tree` is the same idea for them. A trajectory without others gets 0.
Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al. 2024, "Back to Basics".
"""

import numpy as np

from arpo.credit.base import Credit, register
from arpo.credit.scored import Scored
from arpo.credit.settings import RlooCredit
from arpo.tree import RolloutTree


@register("rloo")
def rloo(tree: RolloutTree, settings: RlooCredit) -> Credit:
    """The same advantage on all of a trajectory's policy nodes."""
    scored = Scored.of(tree)
    return scored.spread(scored.counting(settings.shared_prefix_average), own_M=leave_one_out(scored))


def leave_one_out(scored: Scored) -> np.ndarray:
    """R - mean of the others, float64 `[M]`, NaN where there is no reward."""
    count = int(scored.kept_M.sum())
    if count < 2:
        return np.where(scored.kept_M, 0.0, np.nan)
    return (scored.reward_M - scored.reward_M[scored.kept_M].mean()) * count / (count - 1)
