"""Entropy and branching rules as pure logic: what each rule says, and why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.rollout.branching import (
    Reading,
    ToolOutcome,
    decide,
    fires,
    likelihood,
    monitored_initial,
    needs_entropy,
    needs_window,
)
from arpo.rollout.entropy import delta, normaliser, window_mean
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    AepoRule,
    BernoulliRule,
    CredibleRule,
    EntropyRule,
    EntropySettings,
    NoBranching,
    RandomRule,
    ReverseRule,
    UniformRule,
)

VOCAB = 1000


def reading(h_root: float = 0.1, h_tool: float = 0.5, measured: int = 20, ended: bool = False, draw: float = 0.5):
    return Reading(h_root, h_tool, measured, ended, draw)


# Entropy


def test_window_mean_is_an_average_so_length_does_not_matter() -> None:
    assert window_mean(np.full(5, 0.3, np.float32), 20) == pytest.approx(window_mean(np.full(90, 0.3, np.float32), 20))


def test_window_mean_looks_at_the_first_k_only() -> None:
    assert window_mean(np.array([1.0, 2.0, 90.0], np.float32), 2) == 1.5
    assert math.isnan(window_mean(np.empty(0, np.float32), 2))


@pytest.mark.parametrize(("name", "expected"), [("ln_vocab", math.log(VOCAB)), ("vocab", VOCAB), ("none", 1.0)])
def test_normalisers(name: str, expected: float) -> None:
    entropy = EntropySettings.model_validate({"normaliser": name})
    assert normaliser(entropy, VOCAB) == pytest.approx(expected)
    assert delta(0.7, 0.2, entropy, VOCAB) == pytest.approx(0.5 / expected)


# Rules


def test_entropy_rule_is_strict_at_the_threshold() -> None:
    rule, entropy = EntropyRule(), EntropySettings(normaliser="none")
    equal = decide(rule, reading(h_tool=0.1), entropy, VOCAB, 2)
    assert (equal.wanted, equal.probability, equal.delta) == (0, 0.5, 0.0)
    above = decide(rule, reading(h_tool=0.1 + 1e-9), entropy, VOCAB, 2)
    assert above.wanted == 2
    below = decide(rule, reading(h_tool=0.1 - 1e-9), entropy, VOCAB, 2)
    assert below.wanted == 0


def test_entropy_rule_is_no_coin_flip() -> None:
    """Defect 3: the published code branches *with probability* P; the rule is a threshold, whatever the draw."""
    verdicts = {decide(EntropyRule(), reading(draw=d), EntropySettings(), VOCAB, 1).wanted for d in (0.0, 0.5, 0.999)}
    assert verdicts == {1}


def test_bernoulli_follows_its_draw() -> None:
    rule, entropy = BernoulliRule(), EntropySettings(normaliser="none")
    p = 0.5 + 0.2 * 0.4
    assert decide(rule, reading(draw=p - 1e-6), entropy, VOCAB, 1).wanted == 1
    assert decide(rule, reading(draw=p + 1e-6), entropy, VOCAB, 1).wanted == 0


def test_bernoulli_of_weight_zero_needs_no_entropy() -> None:
    rule = BernoulliRule(base_probability=0.25, entropy_weight=0.0)
    verdict = decide(rule, reading(h_root=math.nan, h_tool=math.nan, draw=0.2), EntropySettings(), VOCAB, 1)
    assert (verdict.wanted, verdict.probability) == (1, 0.25)
    assert not needs_entropy(rule)
    assert needs_entropy(BernoulliRule())
    assert not needs_entropy(NoBranching())


def test_absolute_and_delta_needs_both_strictly() -> None:
    rule, entropy = AbsoluteAndDeltaRule(entropy_threshold=0.5), EntropySettings()
    assert needs_entropy(rule)
    assert decide(rule, reading(h_root=0.1, h_tool=0.6), entropy, VOCAB, 1).wanted == 1
    assert decide(rule, reading(h_root=0.1, h_tool=0.5), entropy, VOCAB, 1).wanted == 0
    assert decide(rule, reading(h_root=0.7, h_tool=0.6), entropy, VOCAB, 1).wanted == 0


def test_too_few_tokens_is_no_branch_and_says_so() -> None:
    verdict = decide(EntropyRule(), reading(measured=2), EntropySettings(min_tokens=3), VOCAB, 1)
    assert verdict.wanted == 0
    assert "entropy.min_tokens is 3" in verdict.reason


def test_segment_that_ends_inside_the_window_has_nothing_to_continue() -> None:
    inside = reading(measured=3, ended=True)
    after = decide(EntropyRule(), inside, EntropySettings(), VOCAB, 1)
    assert (after.wanted, after.reason) == (0, "segment ended inside the window")
    assert decide(EntropyRule(at="before_window"), inside, EntropySettings(), VOCAB, 1).wanted == 1


def test_the_biased_form_is_named_in_every_reason() -> None:
    for h_tool in (0.0, 0.5):
        verdict = decide(EntropyRule(at="before_window"), reading(h_tool=h_tool), EntropySettings(), VOCAB, 1)
        assert verdict.reason.startswith("before_window: ")


def test_an_unregistered_rule_is_an_error() -> None:
    with pytest.raises(TypeError, match="no branching rule is registered for str"):
        fires("entropy", reading(), 0.5)
    with pytest.raises(TypeError, match="no branching rule is registered for str"):
        likelihood("entropy", 0.1, reading())


PLAIN = EntropySettings(normaliser="none")
RISE, FALL, LEVEL = reading(h_tool=0.6), reading(h_tool=-0.4), reading(h_tool=0.1)
"""Delta of 0.5, -0.5 and 0, so P is 0.6, 0.4 and 0.5 with the usual alpha and beta."""


def verdict(rule, seen: Reading, **changes):
    return decide(rule, replace(seen, **changes), PLAIN, VOCAB, 3)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (EntropyRule(), (3, 0, 0)),
        (AbsoluteAndDeltaRule(entropy_threshold=0.5), (3, 0, 0)),
        (AbsoluteAndDeltaRule(entropy_threshold=0.6), (0, 0, 0)),
        (ReverseRule(), (0, 3, 0)),
        (AepoRule(), (3, 0, 0)),
        (UniformRule(), (3, 3, 3)),
        (NoBranching(), (0, 0, 0)),
    ],
    ids=lambda value: getattr(value, "type", None),
)
def test_where_entropy_rose_fell_and_stayed(rule, expected: tuple[int, int, int]) -> None:
    assert tuple(verdict(rule, seen).wanted for seen in (RISE, FALL, LEVEL)) == expected


def test_reverse_mirrors_the_entropy_rule() -> None:
    for seen in (RISE, FALL, LEVEL):
        assert verdict(ReverseRule(), seen).probability == pytest.approx(1 - verdict(EntropyRule(), seen).probability)


def test_random_looks_at_nothing_but_its_draw() -> None:
    blind = reading(h_root=math.nan, h_tool=math.nan)
    for seen in (RISE, FALL, blind):
        below = verdict(RandomRule(probability=0.3), seen, draw=0.29)
        assert (below.wanted, below.probability, below.gain) == (3, 0.3, 0.0)
        assert verdict(RandomRule(probability=0.3), seen, draw=0.3).wanted == 0
    assert verdict(RandomRule(probability=1.0), blind, draw=math.nextafter(1, 0)).wanted == 3


def test_uniform_needs_no_entropy() -> None:
    found = verdict(UniformRule(), reading(h_root=math.nan, h_tool=math.nan))
    assert (found.wanted, found.reason, found.gain) == (3, "always", 0.0)


@pytest.mark.parametrize(("streak", "wanted"), [(0, 3), (1, 3), (2, 0), (9, 0)])
def test_aepo_penalises_branchings_in_a_row(streak: int, wanted: int) -> None:
    """P = 0.6 (1 - 0.1 l): 0.6, 0.54, 0.48, ... against 0.5."""
    found = verdict(AepoRule(penalty=0.1), RISE, streak=streak)
    assert found.wanted == wanted
    assert found.probability == pytest.approx(0.6 * max(0, 1 - 0.1 * streak))
    assert f"after {streak} in a row" in found.reason


def test_aepo_without_a_penalty_is_the_entropy_rule() -> None:
    for seen in (RISE, FALL, LEVEL):
        free, plain = (verdict(rule, seen, streak=4) for rule in (AepoRule(penalty=0), EntropyRule()))
        assert (free.wanted, free.probability) == (plain.wanted, plain.probability)


def test_a_penalty_never_turns_a_sign() -> None:
    assert verdict(AepoRule(penalty=1.0, threshold=-0.1), RISE, streak=3).probability == 0


@pytest.mark.parametrize(
    ("outcome", "min_score", "doubt"),
    [
        (ToolOutcome("ok", False), None, ""),
        (ToolOutcome("ok", False, 0.1), None, ""),
        (ToolOutcome("ok", True), None, "empty"),
        (ToolOutcome("tool_error", False), None, "status tool_error"),
        (ToolOutcome("timeout", True, 9.0), 0.5, "status timeout"),
        (ToolOutcome("ok", False, 0.6), 0.5, ""),
        (ToolOutcome("ok", False, 0.5), 0.5, "score 0.5 <= 0.5"),
        (ToolOutcome("ok", False), 0.5, "no score"),
        (ToolOutcome("ok", False, -1.0), -2.0, ""),
    ],
)
def test_credible_branches_where_the_result_passed(outcome: ToolOutcome, min_score: float | None, doubt: str) -> None:
    rule = CredibleRule(min_score=min_score)
    risen = verdict(rule, RISE, result=outcome)
    assert risen.wanted == (0 if doubt else 3)
    assert doubt in risen.reason
    assert verdict(rule, FALL, result=outcome).wanted == 0


def test_credible_without_a_result_to_judge_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="outcome of the tool call"):
        verdict(CredibleRule(), RISE)


def test_what_spread_ranks_by() -> None:
    assert verdict(EntropyRule(), RISE).gain == pytest.approx(0.5)
    assert verdict(ReverseRule(), FALL).gain == pytest.approx(0.5), "where it fell most, reverse wants most"
    assert verdict(BernoulliRule(entropy_weight=0.0), RISE).gain == 0
    assert verdict(NoBranching(), RISE).gain == 0


def test_which_rules_need_what() -> None:
    assert [needs_entropy(rule) for rule in (RandomRule(), UniformRule(), NoBranching())] == [False] * 3
    assert all(needs_entropy(rule) for rule in (EntropyRule(), ReverseRule(), AepoRule(), CredibleRule()))
    assert not needs_entropy(CredibleRule(entropy_weight=0.0))
    assert needs_entropy(AepoRule(entropy_weight=0.0)), "the monitor reads entropies"
    assert not needs_entropy(AepoRule(entropy_weight=0.0, monitor=False))
    assert needs_window(EntropyRule(at="state"))
    assert not needs_window(EntropyRule(at="state", lookahead=True))
    assert not needs_window(EntropyRule())
    assert not needs_window(UniformRule(at="state"))
    assert not needs_window(NoBranching())


# AEPO's N


def test_the_more_uncertain_results_are_the_more_is_kept_for_branches() -> None:
    rule = AepoRule(sharpness=2.0)
    assert monitored_initial(rule, 16, 0.5, [0.5, 0.5]) == 8
    assert monitored_initial(rule, 16, 0.5, [0.9, 1.3]) == round(16 / (1 + math.exp(1.2)))
    assert monitored_initial(rule, 16, 1.5, [0.2]) == round(16 / (1 + math.exp(-2.6)))


def test_sharpness_zero_halves_the_group() -> None:
    assert monitored_initial(AepoRule(sharpness=0), 10, 3.0, [0.1]) == 5


@pytest.mark.parametrize("h_tools", [[], [math.nan]])
def test_a_first_trajectory_without_measured_results_says_nothing(h_tools: list[float]) -> None:
    assert monitored_initial(AepoRule(sharpness=9), 10, 0.3, h_tools) == 5
    assert monitored_initial(AepoRule(sharpness=9), 10, math.nan, [0.3]) == 5


@given(st.integers(1, 64), st.floats(0, 12), st.lists(st.floats(0, 12), max_size=6), st.floats(0, 1e6))
def test_the_group_has_a_trajectory_that_may_branch_and_no_more_than_all(
    total: int, h_root: float, h_tools: list[float], sharpness: float
) -> None:
    rule = AepoRule(sharpness=sharpness)
    found = monitored_initial(rule, total, h_root, h_tools)
    assert min(2, total) <= found <= total
    assert monitored_initial(rule, total, h_root + 1, h_tools) >= found
