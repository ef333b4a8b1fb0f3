"""Branching rules: from what was read at a tool result to the number of extra children wanted there.

A rule is a pure function of a reading, registered by the type of its settings (`@fires.register`), so a new one is a
settings model and a function of a few lines. A reading is *predictable*: it knows only what happened before the
branching point. The one exception is `at = "before_window"`, the published form, which looks at tokens behind the point
that it branches at and biases the gradient; every reason it gives says so.
"""

import math
from dataclasses import dataclass
from functools import singledispatch

from arpo.rollout.entropy import delta
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    BernoulliRule,
    EntropyRule,
    EntropySettings,
    NoBranching,
    Rule,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at a decision point.

    `h_root`, `h_tool` in nats, NaN where the engine gives no entropies; `measured`: tokens behind `h_tool`; `ended`:
    the policy's segment ended before the window was over; `draw`: a uniform in [0, 1) named by the place, for random
    rules.
    """

    h_root: float
    h_tool: float
    measured: int
    ended: bool
    draw: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`wanted` extra children, with the numbers and the words that explain it."""

    delta: float
    probability: float
    wanted: int
    reason: str


def needs_entropy(rule: Rule) -> bool:
    """True if the rule cannot decide without entropies."""
    if isinstance(rule, NoBranching):
        return False
    return isinstance(rule, AbsoluteAndDeltaRule) or rule.entropy_weight != 0


@singledispatch
def fires(rule: object, reading: Reading, probability: float) -> tuple[bool, str]:
    """Does the rule branch here, and why."""
    raise TypeError(f"no branching rule is registered for {type(rule).__name__}")


@fires.register
def _entropy(rule: EntropyRule, reading: Reading, probability: float) -> tuple[bool, str]:
    return _above(probability, rule.threshold)


@fires.register
def _bernoulli(rule: BernoulliRule, reading: Reading, probability: float) -> tuple[bool, str]:
    hit = reading.draw < probability
    return hit, f"draw {reading.draw:.3f} {'<' if hit else '>='} P {probability:.3f}"


@fires.register
def _absolute_and_delta(rule: AbsoluteAndDeltaRule, reading: Reading, probability: float) -> tuple[bool, str]:
    hit, reason = _above(probability, rule.threshold)
    high = reading.h_tool > rule.entropy_threshold
    return hit and high, f"H {reading.h_tool:.3f} {'>' if high else '<='} {rule.entropy_threshold:g}, {reason}"


def _above(probability: float, threshold: float) -> tuple[bool, str]:
    hit = probability > threshold
    return hit, f"P {probability:.4f} {'>' if hit else '<='} {threshold:g}"


def decide(rule: Rule, reading: Reading, entropy: EntropySettings, vocab_size: int, branches: int) -> Verdict:
    """Apply `rule`: P = alpha + beta * delta, and `branches` extra children if it fires."""
    change = delta(reading.h_tool, reading.h_root, entropy, vocab_size)
    if isinstance(rule, NoBranching):
        return Verdict(change, math.nan, 0, "branching is off")
    probability = rule.base_probability + (rule.entropy_weight * change if rule.entropy_weight else 0.0)
    if reading.measured < entropy.min_tokens:
        short = f"{reading.measured} tokens measured, entropy.min_tokens is {entropy.min_tokens}"
        return Verdict(change, probability, 0, short)
    if reading.ended and rule.at == "after_window":
        return Verdict(change, probability, 0, "segment ended inside the window")
    hit, reason = fires(rule, reading, probability)
    note = "before_window: " if rule.at == "before_window" else ""
    return Verdict(change, probability, branches if hit else 0, note + reason)
