"""The fixed inputs that TRL and verl are asked about: closed formulas, no generator, so that they never change.

Sixteen responses of uneven length in rows of twelve tokens. Some hold a tool's result in the middle, which the mask
takes out. The log ratios walk through values on both sides of every clip bound used here, and beyond the dual clip.

Shapes: B = 16 responses, T = 12 tokens, V = 7 tokens of a vocabulary.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch

B, T, V = 16, 12, 7
LENGTHS = (12, 7, 9, 3, 10, 5, 12, 8, 4, 11, 6, 9, 12, 2, 7, 10)
TOOL_SPANS = {0: (4, 7), 2: (3, 5), 4: (5, 9), 6: (2, 6), 9: (6, 8), 11: (1, 3), 12: (9, 11), 15: (4, 5)}
"""Row -> first and one past the last token of the tool's result."""
EVEN_GROUPS = tuple(i // 4 for i in range(B))
UNEVEN_GROUPS = (0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4)
REWARDS = (1.0, 0.0, 0.5, 0.0, 0.25, 1.0, -0.5, 0.125, 1.0, 0.0, 0.75, 1.0, 0.5, 0.5, 0.5, 0.5)
"""Dyadic, so that float32 holds them exactly. Rows 12 to 15: a group without variance, or such a one and a single."""
ADVANTAGES = (1.2, -0.7, 0.4, -1.5, 0.9, -0.3, 0.0, 2.0, -1.1, 0.6, -0.9, 1.4, -2.2, 0.15, -0.05, 0.8)
LOG_RATIOS = (0.0, -0.5, 0.26, -0.25, 0.1, 1.3, -0.1, 0.18, -0.02, 2.0, 0.02, 0.35, -0.9, 0.9)
ROW_SHIFTS = (0.0, -0.47, -0.37, 0.0, -0.31, -0.38, 0.0, -0.35, 0.0, -0.46, 0.0, -0.376, 0.0, -0.56, 0.0, 0.0)
"""Brings the mean of some rows into, and of some below, the narrow range of a sequence-level clip."""


def grid(formula: Callable[[int, int], float]) -> torch.Tensor:
    """float64 `[B, T]` of formula(row, token)."""
    return torch.tensor([[float(formula(i, j)) for j in range(T)] for i in range(B)], dtype=torch.float64)


def response_mask() -> torch.Tensor:
    """1 where the policy wrote the token: inside the response and outside the tool's result, float64 `[B, T]`."""
    return grid(lambda i, j: j < LENGTHS[i] and not _in_tool(i, j))


def completion_mask() -> torch.Tensor:
    """1 inside the response, tool's result included, float64 `[B, T]`."""
    return grid(lambda i, j: j < LENGTHS[i])


def tool_mask() -> torch.Tensor:
    """0 on the tool's result, 1 elsewhere, float64 `[B, T]`."""
    return grid(lambda i, j: not _in_tool(i, j))


def _in_tool(i: int, j: int) -> bool:
    start, stop = TOOL_SPANS.get(i, (0, 0))
    return start <= j < stop


def log_ratios() -> torch.Tensor:
    """ln pi / pi_old, float64 `[B, T]`."""
    return grid(lambda i, j: LOG_RATIOS[(5 * i + 3 * j) % len(LOG_RATIOS)] + ROW_SHIFTS[i])


def logp() -> torch.Tensor:
    """ln pi of each token, float64 `[B, T]`."""
    return grid(lambda i, j: -0.2 - 2.0 * abs(math.sin(1.3 * i + 0.7 * j + 0.4)))


def reference() -> torch.Tensor:
    """ln pi_ref of each token, float64 `[B, T]`."""
    return logp() + grid(lambda i, j: 0.4 * math.sin(2.1 * i + 1.7 * j))


def far_reference() -> torch.Tensor:
    """The same with gaps up to +-4, beyond what some libraries let through."""
    return logp() + grid(lambda i, j: 4.0 * math.sin(2.1 * i + 1.7 * j))


def token_advantages() -> torch.Tensor:
    """An advantage of its own for every token, float64 `[B, T]`."""
    return grid(lambda i, j: ADVANTAGES[i] + 0.9 * math.sin(0.8 * i + 2.3 * j))


def row_advantages() -> torch.Tensor:
    """One advantage per response on all of its tokens, float64 `[B, T]`."""
    return grid(lambda i, j: ADVANTAGES[i])


def logits() -> torch.Tensor:
    """float64 `[B, T, V]`."""
    cells = [[[3 * math.sin(0.9 * i + 0.5 * j + 1.9 * v) for v in range(V)] for j in range(T)] for i in range(B)]
    return torch.tensor(cells, dtype=torch.float64)


def labels() -> torch.Tensor:
    """A token of the vocabulary for every place, int64 `[B, T]`."""
    return grid(lambda i, j: (3 * i + 5 * j) % V).long()


def require_coverage(ratio: torch.Tensor, advantage: torch.Tensor, bounds: tuple[float, ...]) -> None:
    """Raise unless ratios of both signs of advantage lie in every interval between the bounds."""
    kept = response_mask().bool()
    edges = (0.0, *bounds, math.inf)
    for sign in (1, -1):
        for low, high in pairwise(edges):
            if not (kept & (advantage * sign > 0) & (ratio > low) & (ratio < high)).any():
                raise AssertionError(f"no token with advantage sign {sign} and a ratio in ({low}, {high})")
