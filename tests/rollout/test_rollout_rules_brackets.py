"""With entropies known within brackets a verdict stands if the whole bracket agrees; else the midpoint decides."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.rollout.branching import Reading, ToolOutcome, decide
from arpo.rollout.entropy import delta_slack, slack_mean, window_mean
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    AepoRule,
    BernoulliRule,
    BranchingRule,
    CredibleRule,
    EntropyRule,
    EntropySettings,
    RandomRule,
    ReverseRule,
    UniformRule,
)

VOCAB = 100
WEIGHTS = st.sampled_from([-0.4, 0.0, 0.2, 1.0])
RULES = st.one_of(
    st.builds(EntropyRule, entropy_weight=WEIGHTS),
    st.builds(ReverseRule, entropy_weight=WEIGHTS),
    st.builds(BernoulliRule, entropy_weight=WEIGHTS),
    st.builds(AbsoluteAndDeltaRule, entropy_weight=WEIGHTS, entropy_threshold=st.sampled_from([0.0, 0.7])),
    st.builds(AepoRule, entropy_weight=WEIGHTS, base_probability=st.just(0.7)),
    st.builds(CredibleRule, entropy_weight=WEIGHTS),
    st.just(RandomRule()),
    st.just(UniformRule()),
)


def reading(h_root: float, h_tool: float, root_slack: float = 0.0, tool_slack: float = 0.0, **options) -> Reading:
    given_ = {"measured": 9, "ended": False, "draw": 0.5, "result": ToolOutcome("ok", False)} | options
    return Reading(h_root, h_tool, h_root_slack=root_slack, h_tool_slack=tool_slack, **given_)


@settings(max_examples=300, deadline=None)
@given(
    RULES,
    st.floats(0, 2),
    st.floats(0, 2),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(0, 2),
    st.floats(0, 1, exclude_max=True),
)
def test_a_decided_verdict_holds_everywhere_in_the_bracket(
    rule: BranchingRule, h_root: float, h_tool: float, root: float, tool: float, streak: int, draw: float
) -> None:
    entropy = EntropySettings(normaliser="none")
    found = decide(rule, reading(h_root, h_tool, root, tool, streak=streak, draw=draw), entropy, VOCAB, 1)
    middle = decide(rule, reading(h_root, h_tool, streak=streak, draw=draw), entropy, VOCAB, 1)
    assert (found.wanted, found.delta, found.gain) == (middle.wanted, middle.delta, middle.gain)
    steps = np.linspace(-0.999, 0.999, 9)
    inside = {
        decide(rule, reading(h_root + a * root, h_tool + b * tool, streak=streak, draw=draw), entropy, VOCAB, 1).wanted
        for a in steps
        for b in steps
    }
    assert found.undecided or inside == {found.wanted}
    assert ("undecided" in found.reason) == found.undecided


def test_a_bracket_across_the_threshold_is_undecided_and_its_midpoint_decides() -> None:
    entropy = EntropySettings(normaliser="none")
    for h_tool, wanted in ((0.51, 2), (0.49, 0)):
        found = decide(EntropyRule(), reading(0.5, h_tool, 0.02, 0.0), entropy, VOCAB, 2)
        assert (found.wanted, found.undecided) == (wanted, True)
        assert "undecided within +-0.0200 of delta, the midpoint decides" in found.reason
    clear = decide(EntropyRule(), reading(0.5, 0.53, 0.01, 0.01), entropy, VOCAB, 2)
    assert (clear.wanted, clear.undecided) == (2, False)


def test_the_brackets_of_both_means_add_up() -> None:
    entropy = EntropySettings(normaliser="none")
    assert not decide(EntropyRule(), reading(0.5, 0.53, 0.02, 0.0), entropy, VOCAB, 1).undecided
    assert decide(EntropyRule(), reading(0.5, 0.53, 0.02, 0.02), entropy, VOCAB, 1).undecided


def test_the_absolute_threshold_has_a_bracket_of_its_own() -> None:
    entropy = EntropySettings(normaliser="none")
    rule = AbsoluteAndDeltaRule(entropy_threshold=1.0)
    assert decide(rule, reading(0.1, 1.05, 0.0, 0.1), entropy, VOCAB, 1).undecided
    assert not decide(rule, reading(0.1, 1.05, 0.1, 0.0), entropy, VOCAB, 1).undecided


def test_what_no_entropy_decides_is_never_undecided() -> None:
    entropy = EntropySettings()
    wide = {"root_slack": 2.0, "tool_slack": 2.0}
    assert not decide(UniformRule(), reading(0.5, 0.5, **wide), entropy, VOCAB, 1).undecided
    assert not decide(RandomRule(), reading(0.5, 0.5, **wide), entropy, VOCAB, 1).undecided
    empty = reading(0.5, 0.5, **wide, result=ToolOutcome("ok", True))
    assert not decide(CredibleRule(), empty, entropy, VOCAB, 1).undecided
    assert not decide(EntropyRule(), reading(0.5, 0.5, **wide, ended=True), entropy, VOCAB, 1).undecided


def test_without_entropies_nothing_is_undecided() -> None:
    found = decide(RandomRule(), reading(math.nan, math.nan), EntropySettings(), VOCAB, 1)
    assert (found.undecided, found.gain) == (False, 0.0)


def test_slacks_are_averaged_over_the_window_like_entropies() -> None:
    slack = np.array([0.1, 0.3, 9.0], np.float32)
    assert slack_mean(slack, 2) == pytest.approx(0.2)
    assert slack_mean(np.empty(0, np.float32), 2) == 0.0
    assert delta_slack(0.2, 0.1, EntropySettings(), VOCAB) == pytest.approx(0.3 / math.log(VOCAB))


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1), st.floats(-1, 1)), min_size=1, max_size=30))
def test_the_true_mean_lies_in_the_bracket_of_the_mean(tokens: list[tuple[float, float, float]]) -> None:
    mid, slack, error = np.array(tokens).T
    true = mid + error * slack
    assert abs(window_mean(true, 20) - window_mean(mid, 20)) <= slack_mean(slack, 20) + 1e-9
