"""Branching rules: from what was read at a tool result to the number of extra children wanted there.

A rule is a pure function of a reading, registered by the type of its settings (`@fires.register`, and
`@likelihood.register` if its P is not alpha + beta * delta), so a new one is a settings model and a function of a few
lines. A reading is *predictable*: it knows only what happened before the branching point. The one exception is
`at = "before_window"`, the published form, which looks at tokens behind the point that it branches at and biases the
gradient; every reason it gives says so. So does every reason under `at = "stale_state"`, the published code's form:
predictable, but what it reads was sampled before the tool answered.

Engines that see the top K tokens only know entropies within brackets. `decide` then asks the rule at the corners of the
bracket of delta and of H after the result. Every rule is an "and" of thresholds, each on one of the two, so equal
answers at all corners mean the same answer everywhere inside; otherwise the midpoint decides and the verdict says so.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from arpo.rollout.entropy import delta, delta_slack
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    AepoRule,
    BernoulliRule,
    BranchingRule,
    CredibleRule,
    EntropyRule,
    EntropySettings,
    NoBranching,
    RandomRule,
    ReverseRule,
    Rule,
    UniformRule,
    WeightedRule,
)

_NAMED = ("before_window", "stale_state")
"""Positions kept for reproduction alone: every reason names them."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How the tool call before a decision went. `status`: of the result, "ok" if it succeeded; `empty`: it said nothing
    but white space; `score`: the tool's own score of its result, or None."""

    status: str
    empty: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at a decision point.

    `h_root`, `h_tool` in nats, NaN where the engine gives no entropies; `measured`: tokens behind `h_tool`; `ended`:
    the policy's segment ended before the window was over; `draw`: a uniform in [0, 1) named by the place, for random
    rules. `h_root_slack`, `h_tool_slack`: half-widths of the brackets of the two means, 0 where they are exact.
    `streak`: decisions in a row, directly before this one on the path, that wanted branches. Wanted, not opened: what
    the budget gives may be settled only after the trajectory has gone on. `result`: how the tool call went.
    """

    h_root: float
    h_tool: float
    measured: int
    ended: bool
    draw: float
    h_root_slack: float = 0.0
    h_tool_slack: float = 0.0
    streak: int = 0
    result: ToolOutcome | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`wanted` extra children, with the numbers and the words that explain it.

    `undecided`: the rule's answer differs within the bracket of the entropies, and its midpoint decided. `gain`: what
    the budget order "spread" ranks by: delta; its opposite for `reverse`; 0 where the rule reads no entropy.
    """

    delta: float
    probability: float
    wanted: int
    reason: str
    undecided: bool = False
    gain: float = 0.0


def needs_entropy(rule: Rule) -> bool:
    """True if the rule cannot decide without entropies."""
    if not isinstance(rule, WeightedRule):
        return False
    watches = isinstance(rule, AbsoluteAndDeltaRule) or (isinstance(rule, AepoRule) and rule.monitor)
    return watches or rule.entropy_weight != 0


def needs_window(rule: Rule) -> bool:
    """True if the rule decides on the entropy of a single token, for which a one-sample estimate is too coarse."""
    return needs_entropy(rule) and not isinstance(rule, NoBranching) and rule.at == "state" and not rule.lookahead


@singledispatch
def likelihood(rule: object, change: float, reading: Reading) -> float:
    """P of a rule, where `change` is delta."""
    raise TypeError(f"no branching rule is registered for {type(rule).__name__}")


@likelihood.register
def _weighted(rule: WeightedRule, change: float, reading: Reading) -> float:
    return rule.base_probability + (rule.entropy_weight * change if rule.entropy_weight else 0.0)


@likelihood.register
def _reversed(rule: ReverseRule, change: float, reading: Reading) -> float:
    return rule.base_probability - (rule.entropy_weight * change if rule.entropy_weight else 0.0)


@likelihood.register
def _penalised(rule: AepoRule, change: float, reading: Reading) -> float:
    return _weighted(rule, change, reading) * max(0.0, 1 - rule.penalty * reading.streak)


@likelihood.register
def _constant(rule: RandomRule, change: float, reading: Reading) -> float:
    return rule.probability


@likelihood.register
def _certain(rule: UniformRule, change: float, reading: Reading) -> float:
    return 1.0


@singledispatch
def fires(rule: object, reading: Reading, probability: float) -> tuple[bool, str]:
    """Does the rule branch here, and why."""
    raise TypeError(f"no branching rule is registered for {type(rule).__name__}")


@fires.register(EntropyRule)
@fires.register(ReverseRule)
def _threshold(rule: EntropyRule | ReverseRule, reading: Reading, probability: float) -> tuple[bool, str]:
    return _above(probability, rule.threshold)


@fires.register(BernoulliRule)
@fires.register(RandomRule)
def _drawn(rule: BernoulliRule | RandomRule, reading: Reading, probability: float) -> tuple[bool, str]:
    hit = reading.draw < probability
    return hit, f"draw {reading.draw:.3f} {'<' if hit else '>='} P {probability:.3f}"


@fires.register
def _absolute_and_delta(rule: AbsoluteAndDeltaRule, reading: Reading, probability: float) -> tuple[bool, str]:
    hit, reason = _above(probability, rule.threshold)
    high = reading.h_tool > rule.entropy_threshold
    return hit and high, f"H {reading.h_tool:.3f} {'>' if high else '<='} {rule.entropy_threshold:g}, {reason}"


@fires.register
def _always(rule: UniformRule, reading: Reading, probability: float) -> tuple[bool, str]:
    return True, "always"


@fires.register
def _aepo(rule: AepoRule, reading: Reading, probability: float) -> tuple[bool, str]:
    """Branch penalty of "Agentic Entropy-Balanced Policy Optimization" (arXiv 2510.14545)."""
    hit, reason = _above(probability, rule.threshold)
    return hit, f"{reason} after {reading.streak} in a row"


@fires.register
def _credible(rule: CredibleRule, reading: Reading, probability: float) -> tuple[bool, str]:
    doubt = _doubt(rule, reading.result)
    return (False, doubt) if doubt else _above(probability, rule.threshold)


def _doubt(rule: CredibleRule, result: ToolOutcome | None) -> str:
    """Why the tool result did not pass; "" if it did."""
    if result is None:
        raise ValueError("the rule credible needs the outcome of the tool call in its reading")
    if result.status != "ok":
        return f"the tool result is not credible: status {result.status}"
    if result.empty:
        return "the tool result is not credible: empty"
    if rule.min_score is None:
        return ""
    if result.score is None:
        return "the tool result is not credible: no score"
    passed = result.score > rule.min_score
    return "" if passed else f"the tool result is not credible: score {result.score:g} <= {rule.min_score:g}"


def _above(probability: float, threshold: float) -> tuple[bool, str]:
    hit = probability > threshold
    return hit, f"P {probability:.4f} {'>' if hit else '<='} {threshold:g}"


def decide(rule: Rule, reading: Reading, entropy: EntropySettings, vocab_size: int, branches: int) -> Verdict:
    """Apply `rule`; `branches` extra children if it fires."""
    change = delta(reading.h_tool, reading.h_root, entropy, vocab_size)
    if isinstance(rule, NoBranching):
        return Verdict(change, math.nan, 0, "branching is off")
    probability = likelihood(rule, change, reading)
    if reading.measured < entropy.min_tokens:
        short = f"{reading.measured} tokens measured, entropy.min_tokens is {entropy.min_tokens}"
        return Verdict(change, probability, 0, short)
    if reading.ended and rule.at == "after_window":
        return Verdict(change, probability, 0, "segment ended inside the window")
    hit, reason = fires(rule, reading, probability)
    slack = delta_slack(reading.h_tool_slack, reading.h_root_slack, entropy, vocab_size)
    undecided = any(answer != hit for answer in _corners(rule, reading, change, slack))
    note = f"{rule.at}: " if rule.at in _NAMED else ""
    doubt = f"; undecided within +-{slack:.4f} of delta, the midpoint decides" if undecided else ""
    return Verdict(
        delta=change,
        probability=probability,
        wanted=branches if hit else 0,
        reason=note + reason + doubt,
        undecided=undecided,
        gain=_gain(rule, change),
    )


def _corners(rule: BranchingRule, reading: Reading, change: float, slack: float) -> Iterator[bool]:
    """The rule's answers at the ends of the brackets of delta and of H after the result; none where both are exact."""
    if not (slack or reading.h_tool_slack):
        return
    for sign in (-1, 1):
        probability = likelihood(rule, change + sign * slack, reading)
        for other in (-1, 1):
            edge = replace(reading, h_tool=reading.h_tool + other * reading.h_tool_slack)
            yield fires(rule, edge, probability)[0]


def _gain(rule: Rule, change: float) -> float:
    if not needs_entropy(rule) or math.isnan(change):
        return 0.0
    return -change if isinstance(rule, ReverseRule) else change


def monitored_initial(rule: AepoRule, total: int, h_root: float, h_tools: Sequence[float]) -> int:
    """N for a group of `total` trajectories, from what the first one saw: total * sigmoid(b (H_root - mean H_tool)).

    `h_root`, `h_tools` in nats, the latter one for each of its tool results. The more uncertain the results leave the
    policy, compared with the question, the more of the group is kept for branches. The formula is the pre-monitoring
    of "Agentic Entropy-Balanced Policy Optimization" (arXiv 2510.14545). Ours: a difference of 0 where no result was
    measured; and the trajectory that monitored stays in the group as the first of the N, where the published code
    throws it away. It does not branch, so N, rounded to the nearest whole number, is at least 2 (if `total` is), and at
    most `total`. N depends on what that trajectory sampled, which biases the gradient.
    """
    known = [h for h in h_tools if math.isfinite(h)]
    gap = h_root - sum(known) / len(known) if known and math.isfinite(h_root) else 0.0
    share = 0.5 * (1 + math.tanh(rule.sharpness * gap / 2))
    return min(max(round(total * share), 2), total)
