"""Entropy as a branching signal: means over windows and the normalised difference to the root's baseline.

Everything is in nats and averaged, never summed, so a 5-token and a 20-token segment of equal per-token entropy give
the same H. The tokens measured are the trajectory's own; nothing is sampled to be measured (look-ahead apart).
"""

import math

import numpy as np

from arpo.rollout.settings import EntropySettings


def window_mean(entropy_T: np.ndarray, window: int) -> float:
    """Mean entropy of the first `window` tokens of `entropy_T` (nats); NaN if there are none."""
    head = np.asarray(entropy_T[:window], np.float64)
    return float(head.mean()) if len(head) else math.nan


def slack_mean(slack_T: np.ndarray, window: int) -> float:
    """Half-width of the bracket of `window_mean` (nats): the mean of its tokens' half-widths; 0 where all are exact.

    Brackets of single tokens add up in a mean whatever their errors have to do with each other, so this is exact.
    """
    return window_mean(slack_T, window) if len(slack_T) else 0.0


def normaliser(settings: EntropySettings, vocab_size: int) -> float:
    """What an entropy difference is divided by: ln V (its maximum), V (the paper's form) or 1. V >= 2."""
    return {"ln_vocab": math.log(vocab_size), "vocab": float(vocab_size), "none": 1.0}[settings.normaliser]


def delta(h_tool: float, h_root: float, settings: EntropySettings, vocab_size: int) -> float:
    """(H_tool - H_root) / normaliser; NaN where one of them is not known."""
    return (h_tool - h_root) / normaliser(settings, vocab_size)


def delta_slack(tool_slack: float, root_slack: float, settings: EntropySettings, vocab_size: int) -> float:
    """Half-width of the bracket of `delta`, from those of the two means."""
    return (tool_slack + root_slack) / normaliser(settings, vocab_size)
