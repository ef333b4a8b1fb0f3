"""Contradictions in a rollout's configuration are refused with the key and the remedy in the message."""

import pytest
from pydantic import ValidationError

from arpo.rollout.settings import BernoulliRule, EntropyRule, EntropySettings, NoBranching, RolloutSettings


def test_paper_defaults_stand() -> None:
    settings, entropy = RolloutSettings(), EntropySettings()
    assert (settings.total, settings.initial, settings.temperature, settings.max_tokens) == (16, 8, 1.0, 4096)
    rule = settings.branching
    assert isinstance(rule, EntropyRule)
    assert (rule.base_probability, rule.entropy_weight, rule.threshold) == (0.5, 0.2, 0.5)
    assert (rule.at, rule.lookahead) == ("after_window", False)
    assert (entropy.window, entropy.normaliser) == (20, "ln_vocab")


def test_rules_are_told_apart_by_type() -> None:
    settings = RolloutSettings.model_validate({"branching": {"type": "bernoulli", "entropy_weight": 0.0}})
    assert isinstance(settings.branching, BernoulliRule)
    with pytest.raises(ValidationError, match="threshold"):
        RolloutSettings.model_validate({"branching": {"type": "bernoulli", "threshold": 0.5}})


def test_more_initial_than_total_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"lower rollout\.initial or raise rollout\.total"):
        RolloutSettings(total=4, initial=5)


def test_branching_off_needs_initial_equal_to_total() -> None:
    with pytest.raises(ValidationError, match=r"set rollout\.initial = rollout\.total = 16"):
        RolloutSettings(branching=NoBranching())
    assert RolloutSettings(total=8, initial=8, branching=NoBranching()).initial == 8


def test_greedy_group_of_many_is_refused() -> None:
    with pytest.raises(ValidationError, match="temperature = 0"):
        RolloutSettings(temperature=0)
    assert RolloutSettings(temperature=0, total=1, initial=1).temperature == 0


def test_lookahead_needs_the_state_position() -> None:
    with pytest.raises(ValidationError, match="lookahead"):
        EntropyRule(lookahead=True)
    assert EntropyRule(at="state", lookahead=True).lookahead


def test_more_minimum_tokens_than_window_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"entropy\.min_tokens"):
        EntropySettings(window=4, min_tokens=5)
