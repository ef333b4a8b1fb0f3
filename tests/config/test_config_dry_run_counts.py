"""The arithmetic of a dry run against counts made by hand, and against trees that really grew."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_fakes import by_turn, grow

from arpo.config.dry_run_counts import Batch, Costs, batch, costs, quantiles
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
from arpo.train.settings import TrainSettings

ONE = TrainSettings(prompts=1)
PAPER = RolloutSettings(total=16, initial=8, max_tokens=4096, max_calls=6)


def step(rollout: RolloutSettings, train: TrainSettings = ONE, window: int = 20) -> Costs:
    return costs(train, rollout, window, has_tools=True, room=rollout.max_tokens)


def test_a_batch_of_the_paper() -> None:
    made = batch(TrainSettings(prompts=128, mini_batch=16, steps=156), PAPER, 10_000)
    assert made == Batch(128, 2048, 16, 8, 1, 156, 319_488, 1248, 1.9968)
    assert batch(TrainSettings(prompts=4), PAPER, None).epochs is None
    drawn = batch(TrainSettings(prompts=4, resample_flat=True, max_rounds=10), PAPER, 8)
    assert (drawn.rounds, drawn.trajectories, drawn.updates, drawn.mini_batch) == (10, 64, 1, 4)


def test_eight_branches_at_the_first_call_save_one_call_each() -> None:
    """M = 16, N = 8, T = 3: 8 x 3 + 8 x 2 of 48 calls, and three quarters of the tokens of each branch."""
    made = step(PAPER)
    assert (made.tokens, made.calls, made.branches, made.top_ups) == (2048, 3, 8, 0)
    assert made.expected.calls == 8 * 3 + 8 * 2
    assert made.expected.tokens == 8 * 2048 + 8 * 2048 * 3 / 4
    assert (made.independent.calls, made.independent.tokens) == (48, 16 * 2048)
    assert (made.largest.calls, made.largest.tokens) == (16 * 6, 16 * 4096)


def test_without_branches_a_group_is_its_trajectories() -> None:
    made = step(PAPER.model_copy(update={"initial": 16, "branching": NoBranching()}))
    assert made.expected == made.independent
    assert (made.branches, made.top_ups) == (0, 0)


def test_without_tools_nothing_is_called() -> None:
    rollout = RolloutSettings(total=4, initial=4, branching=NoBranching(), max_tokens=100)
    made = costs(ONE, rollout, 20, has_tools=False, room=60)
    assert (made.calls, made.expected.calls, made.largest.calls) == (0, 0, 0)
    assert (made.expected.tokens, made.largest.tokens) == (120, 240)


def test_limits_of_the_budget_move_branches_down_or_turn_them_into_fresh_trajectories() -> None:
    scarce = PAPER.model_copy(update={"initial": 2, "total": 8})
    assert step(scarce).expected.calls == 2 * 3 + 2 * 2 + 4 * 1
    capped = scarce.model_copy(update={"budget": BudgetSettings(max_depth=1)})
    assert (step(capped).branches, step(capped).top_ups) == (2, 4)
    assert step(capped).expected.calls == (2 + 4) * 3 + 2 * 2


def test_rules_that_draw_are_averaged_and_a_coin_that_never_falls_branches_never() -> None:
    always = step(PAPER.model_copy(update={"branching": UniformRule(at="state")}))
    half = step(PAPER.model_copy(update={"branching": RandomRule(at="state", probability=0.5)}))
    never = step(PAPER.model_copy(update={"branching": BernoulliRule(base_probability=0.0)}))
    assert half.expected.calls < always.expected.calls < never.expected.calls == 48
    assert (never.branches, never.top_ups) == (0, 8)


def test_the_monitors_own_trajectory_does_not_branch() -> None:
    """At dH = 0 half of the group starts from the prompt; one of those eight may not branch at its first result."""
    made = step(PAPER.model_copy(update={"branching": AepoRule()}))
    assert made.branches == 8
    assert made.expected.calls == 8 * 3 + 7 * 2 + 1 * 1


def test_look_ahead_is_paid_for_at_every_result() -> None:
    plain = PAPER.model_copy(update={"branching": EntropyRule(at="state")})
    ahead = PAPER.model_copy(update={"branching": EntropyRule(at="state", lookahead=True)})
    assert step(ahead).expected.tokens == step(plain).expected.tokens + 20 * 40
    assert step(ahead).largest.tokens == step(plain).largest.tokens + 16 * 6 * 20


def test_steps_and_rounds_multiply() -> None:
    train = TrainSettings(prompts=3, resample_flat=True, max_rounds=5)
    assert step(PAPER, train).expected == step(PAPER).expected.times(3)
    assert step(PAPER, train).largest == step(PAPER).largest.times(15)


GROWN = st.builds(
    lambda initial, extra, branches, calls, budget: RolloutSettings(
        total=initial + extra,
        initial=initial,
        branches=branches,
        max_calls=2 * calls,
        max_tokens=4000,
        share_calls="off",
        branching=UniformRule(at="state"),
        budget=budget,
    ),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 2),
    st.integers(1, 4),
    st.builds(
        BudgetSettings,
        per_trajectory_cap=st.sampled_from([None, 1]),
        max_forks=st.sampled_from([None, 1]),
        max_depth=st.sampled_from([None, 1, 2]),
    ),
)


@settings(max_examples=20, deadline=None)
@given(GROWN)
def test_a_group_grown_on_paper_is_the_group_that_grows(rollout: RolloutSettings) -> None:
    """A policy that always makes T calls, under a rule that always fires: branches, top-ups and calls are the same."""
    calls = rollout.max_calls // 2
    tree = asyncio.run(grow(by_turn(*["ab<s>q</s>"] * calls, "[4]$"), rollout, entropy=EntropySettings(window=2)))
    made = step(rollout)
    assert made.calls == calls
    assert sum(d.opened for d in tree.decisions) == made.branches
    assert tree.top_ups == made.top_ups
    assert tree.requested_calls == made.expected.calls


def test_quantiles_are_counts_that_occur() -> None:
    assert quantiles(range(1, 201)) == {"least": 1, "median": 100, "90 %": 180, "99 %": 198, "most": 200}
    assert set(quantiles([7]).values()) == {7}


@pytest.mark.parametrize("order", ["path", "spread", "arrival"])
def test_the_order_of_the_budget_changes_who_branches_not_how_much(order: str) -> None:
    rollout = PAPER.model_copy(update={"initial": 3, "total": 9, "budget": BudgetSettings(order=order)})
    assert step(rollout).expected.calls == 3 * 3 + 3 * 2 + 3 * 1
