"""A tool-calling episode so small that nothing about it has to be estimated.

The policy decides four times, each time between two tokens: which call to make; then, after the tool's result, two
tokens of a window; then the answer. Sixteen outcomes, each with a reward of 0 or 1. The policy is a table of logits,
one row per history, so expected rewards, entropies and gradients are finite sums. Rewards are binary on purpose: with
independent trajectories, dividing by the group's standard deviation then only rescales the expected gradient, and
every change of its direction is the branching's.

Histories are numbered as in a heap: 0 is the empty one, and deciding k (0 or 1) at history s leads to 2 s + 1 + k.
Suffixes: S histories (15), K choices (2), O outcomes (16), R = S * K (history, choice) pairs, numbered 2 s + k, which
are also the coordinates of the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

DECISIONS = 4
HISTORIES = 2**DECISIONS - 1
OUTCOMES = 2**DECISIONS
VOCABULARY = 2
WINDOW = 2
"""Policy tokens after the result over which entropy is averaged."""


@dataclass(frozen=True)
class Episode:
    """`first_S`: probability of choice 0 at each history; `reward_O`: reward of each outcome, in heap order."""

    first_S: tuple[float, ...]
    reward_O: tuple[float, ...]

    @cached_property
    def logits(self) -> np.ndarray:
        """The policy's parameters, float64 `[15, 2]`."""
        first_S = np.array(self.first_S)
        return np.log(np.stack([first_S, 1 - first_S], axis=1))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, float64 `[15, 2]`."""
        return softmax(self.logits)

    @cached_property
    def entropies(self) -> np.ndarray:
        """Entropy of each decision in nats, float64 `[15]`."""
        return -(self.probabilities * np.log(self.probabilities)).sum(axis=1)

    @cached_property
    def scores(self) -> np.ndarray:
        """Row 2 s + k: the gradient of ln pi(k | s) with respect to all logits, float64 `[30, 30]`."""
        score = np.zeros((HISTORIES, 2, HISTORIES, 2))
        for history, probability_K in enumerate(self.probabilities):
            score[history, :, history] = np.eye(2) - probability_K
        return score.reshape(2 * HISTORIES, 2 * HISTORIES)

    @cached_property
    def expected_reward(self) -> float:
        """J = E[R] under the policy."""
        return expected_reward(self.logits, self.reward_O)

    @cached_property
    def gradient(self) -> np.ndarray:
        """The exact gradient of J with respect to the logits, float64 `[30]`.

        dJ / d logit(s, k) = reach(s) pi(k | s) (Q(s, k) - V(s)): Sutton et al. 2000, "Policy gradient methods",
        theorem 1, for a softmax table.
        """
        value = _values(self.probabilities, self.reward_O)
        reach = _reach(self.probabilities)
        q_SK = value[1:].reshape(HISTORIES, 2)
        advantage_SK = q_SK - value[:HISTORIES, None]
        return (reach[:HISTORIES, None] * self.probabilities * advantage_SK).ravel()

    def outcomes(self, history: int = 0) -> list[tuple[tuple[int, ...], float]]:
        """All ways to go on from `history` to the end: (pairs 2 s + k decided on the way, probability)."""
        if history >= HISTORIES:
            return [((), 1.0)]
        return [
            ((2 * history + choice, *rest), float(self.probabilities[history, choice]) * share)
            for choice in range(2)
            for rest, share in self.outcomes(2 * history + 1 + choice)
        ]

    def reward(self, last_pair: int) -> float:
        """Reward of the trajectory whose last decision is `last_pair`."""
        return self.reward_O[last_pair + 1 - HISTORIES]


def softmax(logit_SK: np.ndarray) -> np.ndarray:
    """Probabilities, float64 `[S, K]`."""
    odds_SK = np.exp(logit_SK - logit_SK.max(axis=1, keepdims=True))
    return odds_SK / odds_SK.sum(axis=1, keepdims=True)


def expected_reward(logit_SK: np.ndarray, reward_O: Sequence[float]) -> float:
    """J for any logits `[15, 2]`: what a finite difference of the gradient is taken of."""
    return float(_values(softmax(logit_SK), reward_O)[0])


def _values(probability_SK: np.ndarray, reward_O: Sequence[float]) -> np.ndarray:
    """Expected reward from each history and outcome, in heap order, float64 `[31]`."""
    value = np.concatenate([np.zeros(HISTORIES), reward_O])
    for history in reversed(range(HISTORIES)):
        value[history] = probability_SK[history] @ value[2 * history + 1 : 2 * history + 3]
    return value


def _reach(probability_SK: np.ndarray) -> np.ndarray:
    """Probability of each history and outcome, in heap order, float64 `[31]`."""
    reach = np.ones(HISTORIES + OUTCOMES)
    for history, probability_K in enumerate(probability_SK):
        reach[2 * history + 1 : 2 * history + 3] = reach[history] * probability_K
    return reach
