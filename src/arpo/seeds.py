"""Every random draw is a function of where it happens, never of when.

A seed is derived from (run seed, step, prompt id, path in the tree, purpose), so the order in which tools or
sequences finish cannot change a trajectory, and a resumed run draws what the uninterrupted one would have drawn.
"""

import hashlib

import numpy as np

_MASK = (1 << 64) - 1


def derive(*parts: str | int) -> int:
    """A 64-bit seed from any mixture of names and numbers; equal parts give equal seeds on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(seeds_B: np.ndarray, counters_B: np.ndarray) -> np.ndarray:
    """One uniform in [0, 1) per (seed, counter), float64 `[B]`: splitmix64, vectorised.

    A counter-based generator needs no state per sequence, so sequences may join, leave and be replayed freely.
    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        z = seeds_B.astype(np.uint64) + (counters_B.astype(np.uint64) + np.uint64(1)) * golden
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform(*parts: str | int) -> float:
    """One uniform in [0, 1) named by its place."""
    return float((derive(*parts) & _MASK) >> 11) * 2.0**-53
