"""How much each token of a mini-batch counts in its loss.

The weights of a whole mini-batch become one coefficient per token before it is cut into forward passes; the loss is
the sum of coefficient times term. So how it is cut changes nothing.

Shapes: R trajectories, p tokens in the loss of one of them.
"""

from collections.abc import Sequence

import numpy as np

from arpo.learn.settings import LossBase


def coefficients(weights: Sequence[np.ndarray], groups: Sequence[int], settings: LossBase) -> list[np.ndarray]:
    """Each token's coefficient, one float64 array `[p]` per trajectory, as `settings.aggregation` says.

    `weights`: >= 0, one array `[p]` for each trajectory of the mini-batch; `groups`: which group each is of. A
    trajectory whose weights sum to 0 gets zeros, and neither it nor a group of nothing but such is counted.
    """
    sum_R = np.array([float(w.sum()) for w in weights])
    counted_R = sum_R > 0
    if not counted_R.any():
        return [np.zeros(w.shape, np.float64) for w in weights]
    trajectories = int(counted_R.sum())
    scale_R = np.zeros(len(sum_R))
    if settings.aggregation == "token_mean":
        scale_R[:] = 1 / sum_R.sum()
    elif settings.aggregation == "sequence_mean":
        scale_R[counted_R] = 1 / (sum_R[counted_R] * trajectories)
    elif settings.aggregation == "constant":
        scale_R[:] = 1 / (settings.length * trajectories)
    else:
        scale_R[:] = 1 / len(set(np.asarray(groups)[counted_R].tolist()))
    return [w * scale for w, scale in zip(weights, scale_R, strict=True)]
