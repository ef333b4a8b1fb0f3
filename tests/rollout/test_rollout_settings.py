"""Contradictions in a rollout's configuration are refused with the key and the remedy in the message."""

import pytest
from pydantic import ValidationError

from arpo.rollout.settings import (
    AepoRule,
    BernoulliRule,
    BudgetSettings,
    EntropyRule,
    EntropySettings,
    NoBranching,
    RandomRule,
    RolloutSettings,
    UniformRule,
)


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


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("random", {"entropy_weight": 0.2}),
        ("random", {"threshold": 0.5}),
        ("uniform", {"probability": 0.5}),
        ("reverse", {"penalty": 0.1}),
        ("credible", {"entropy_threshold": 0.1}),
        ("entropy", {"min_score": 0.1}),
        ("none", {"at": "state"}),
    ],
)
def test_an_option_of_another_rule_is_refused_by_name(kind: str, option: dict[str, object]) -> None:
    (name,) = option
    with pytest.raises(ValidationError, match=name):
        RolloutSettings.model_validate({"total": 8, "initial": 8, "branching": {"type": kind, **option}})


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("random", {"probability": 0.0}),
        ("random", {"probability": 1.1}),
        ("aepo", {"penalty": -0.1}),
        ("aepo", {"penalty": 1.5}),
        ("aepo", {"sharpness": -1}),
    ],
)
def test_values_without_sense_are_refused_by_name(kind: str, option: dict[str, object]) -> None:
    (name,) = option
    with pytest.raises(ValidationError, match=name):
        RolloutSettings.model_validate({"branching": {"type": kind, **option}})


def test_rules_that_read_no_entropy_look_nowhere_ahead() -> None:
    for rule in (RandomRule, UniformRule):
        with pytest.raises(ValidationError, match="reads no entropy"):
            rule(at="state", lookahead=True)


def test_budget_defaults_forbid_nothing() -> None:
    budget = RolloutSettings().budget
    assert (budget.order, budget.min_tokens_left) == ("path", 0)
    assert (budget.per_trajectory_cap, budget.max_forks, budget.max_depth) == (None, None, None)
    assert RolloutSettings().share_calls == "group"


@pytest.mark.parametrize("name", ["per_trajectory_cap", "max_forks", "max_depth"])
def test_a_limit_of_no_branches_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        BudgetSettings.model_validate({name: 0})


def test_unknown_budget_keys_and_orders_are_refused() -> None:
    with pytest.raises(ValidationError, match="cap"):
        BudgetSettings.model_validate({"cap": 2})
    with pytest.raises(ValidationError, match="order"):
        BudgetSettings.model_validate({"order": "first"})


def test_tokens_that_are_never_left_are_refused() -> None:
    far = {"max_tokens": 100, "budget": {"min_tokens_left": 100}}
    with pytest.raises(ValidationError, match=r"lower rollout\.budget\.min_tokens_left"):
        RolloutSettings.model_validate(far)
    flat = {"initial": 16, "branching": {"type": "none"}}
    assert not RolloutSettings.model_validate(far | flat).may_branch


def test_who_may_branch() -> None:
    assert RolloutSettings().may_branch
    assert not RolloutSettings(initial=16).may_branch
    monitored = RolloutSettings(initial=16, branching=AepoRule())
    assert monitored.monitors
    assert monitored.may_branch, "the first trajectory decides how many start from the prompt"
    assert not RolloutSettings(initial=16, branching=AepoRule(monitor=False)).may_branch
