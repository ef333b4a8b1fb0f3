"""What the K largest log-probs of a distribution say about its entropy: a bracket, from numpy alone.

Servers report a few log-probs per token, not the whole distribution. With p_1 >= ... >= p_K known and the mass
m = 1 - sum p_k left for the other V - K tokens, the entropy is H = H_K + h with H_K = -sum p_k ln p_k and h that of the
unnormalised rest. None of the rest exceeds p_K, nor m itself, so h >= -m ln min(p_K, m); and h is largest where the
rest is uniform, so h <= m ln((V - K) / m). Both ends are attained (up to whole numbers of tokens), so nothing better
can be said from K log-probs alone.

Legend: T tokens, K known log-probs, V vocabulary.
"""

import numpy as np


def bracket(logp_TK: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest entropy (nats, float64 `[T]` each) that the K largest log-probs of each row allow.

    `logp_TK`: natural logs in any order, K <= V = `vocab_size`; minus infinity (or the very negative numbers that
    servers write for it) is a token of probability 0. Right up to the rounding of what is given.
    """
    logp_TK = np.asarray(logp_TK, np.float64)
    known, others = logp_TK.shape[1], vocab_size - logp_TK.shape[1]
    if known < 1 or others < 0:
        raise ValueError(f"{known} log-probs per token for a vocabulary of {vocab_size}")
    p_TK = np.exp(logp_TK)
    head_T = -np.where(p_TK > 0, p_TK * np.where(p_TK > 0, logp_TK, 0.0), 0.0).sum(-1)
    rest_T = np.maximum(1.0 - p_TK.sum(-1), 0.0) if others else np.zeros(len(logp_TK))
    largest_T = np.minimum(p_TK.min(-1), rest_T)
    low_T = head_T - rest_T * _log(largest_T)
    high_T = head_T + rest_T * (np.log(max(others, 1)) - _log(rest_T))
    return low_T, np.maximum(low_T, high_T)


def midpoints(logp_TK: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half-width of each bracket, float32 `[T]`: what a segment calls `entropies` and `slacks`."""
    low_T, high_T = bracket(logp_TK, vocab_size)
    return ((low_T + high_T) / 2).astype(np.float32), ((high_T - low_T) / 2).astype(np.float32)


def _log(values_T: np.ndarray) -> np.ndarray:
    """Natural logs, 0 where the value is 0: each is multiplied by a mass that is then 0, too."""
    return np.log(np.where(values_T > 0, values_T, 1.0))
