"""Entropy, branching rules, and budget as pure logic."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.rollout.branching import Reading, decide, fires, needs_entropy
from arpo.rollout.budget import Budget, Grant, child_path
from arpo.rollout.entropy import delta, normaliser, window_mean
from arpo.rollout.settings import (
    AbsoluteAndDeltaRule,
    BernoulliRule,
    BudgetSettings,
    EntropyRule,
    EntropySettings,
    NoBranching,
)
from arpo.seeds import derive

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


# Budget


def simulate(units: int, branches: int, depths: list[int], wants: random.Random, arrivals: random.Random, **options):
    """Random trajectories of `depths` decisions each, advanced in a random order. What each claim got, by place.

    Whether a place wants a branch, and how far a child goes, depends on its name alone.
    """
    budget = Budget(units, BudgetSettings(**options), branches, derive)
    key = wants.randrange(1 << 30)

    def luck(*place: object) -> random.Random:
        return random.Random(f"{key}{place}")

    running = {f"r{i}": (1, depth) for i, depth in enumerate(depths)}
    for path in running:
        budget.enter(path)
    result: dict[tuple[str, int], Grant] = {}
    while running:
        path = arrivals.choice(sorted(running))
        depth, last = running[path]
        if depth > last:
            budget.leave(path)
            del running[path]
        else:
            if luck(path, depth).random() < 0.7:
                budget.claim(path, branches)
            else:
                budget.skip(path)
            running[path] = (depth + 1, last)
        for grant in budget.settle():
            result[grant.claim.path, grant.claim.depth] = grant
            for number in range(1, grant.opened + 1):
                child = child_path(grant.claim.path, grant.claim.depth, number)
                end = luck(child).randrange(grant.claim.depth, grant.claim.depth + 3)
                running[child] = (grant.claim.depth + 1, end)
    return result, budget


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 9),
    st.integers(1, 3),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sampled_from([None, 1, 2]),
    st.integers(0, 1 << 30),
)
def test_budget_gives_the_same_whatever_arrives_first(
    units: int, branches: int, depths: list[int], max_forks: int | None, seed: int
) -> None:
    """Defect 5: no order of arrival and no index decides who branches; and the budget is kept to the unit."""
    outcomes = []
    for order in range(4):
        result, budget = simulate(
            units, branches, depths, random.Random(seed), random.Random(order), max_forks=max_forks
        )
        assert sum(grant.opened for grant in result.values()) == units - budget.left
        assert budget.left >= 0
        assert not budget.can_still_open()
        outcomes.append(result)
    assert all(outcome == outcomes[0] for outcome in outcomes)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 1 << 30))
def test_budget_serves_claims_in_rank_order(units: int, depths: list[int], seed: int) -> None:
    """Nobody is refused while somebody with a later rank is served."""
    result, _ = simulate(units, 1, depths, random.Random(seed), random.Random(seed + 1))
    ranked = [grant.opened for grant in sorted(result.values(), key=lambda grant: grant.claim)]
    assert ranked == sorted(ranked, reverse=True)


def test_ample_budget_is_granted_at_once() -> None:
    budget = Budget(8, BudgetSettings(), 1, lambda path, depth: 0)
    for number in range(8):
        budget.enter(f"r{number}")
    budget.claim("r7", 1)
    (grant,) = budget.settle()
    assert (grant.opened, budget.left) == (1, 7)


def test_scarce_budget_waits_for_earlier_ranks_only() -> None:
    budget = Budget(1, BudgetSettings(), 1, lambda path, depth: {"r0": 0, "r1": 1}[path])
    budget.enter("r0")
    budget.enter("r1")
    budget.claim("r1", 1)
    assert budget.settle() == []
    budget.skip("r0")
    (grant,) = budget.settle()
    assert (grant.claim.path, grant.opened) == ("r1", 1)


def test_arrival_order_never_waits() -> None:
    budget = Budget(1, BudgetSettings(order="arrival"), 2, lambda path, depth: {"r0": 0, "r1": 1}[path])
    budget.enter("r0")
    budget.enter("r1")
    assert budget.worth_pausing("r0", 100)
    budget.claim("r1", 2)
    (grant,) = budget.settle()
    assert (grant.opened, grant.note) == (1, "budget spent")
    assert not budget.worth_pausing("r0", 100)


def test_no_fixed_index_is_favoured() -> None:
    """Defect 5: over many places each of 8 trajectories gets the only branch about equally often."""
    wins = dict.fromkeys((f"r{number}" for number in range(8)), 0)
    for place in range(800):
        mixed = random.Random(place)
        ranks = {path: mixed.random() for path in wins}
        budget = Budget(1, BudgetSettings(), 1, lambda path, depth, ranks=ranks: int(ranks[path] * 1e9))
        for path in wins:
            budget.enter(path)
        for path in wins:
            budget.claim(path, 1)
        for grant in budget.settle():
            wins[grant.claim.path] += grant.opened
    assert sum(wins.values()) == 800
    assert min(wins.values()) > 60


def test_branch_depth_counts_forks_on_the_path() -> None:
    budget = Budget(9, BudgetSettings(max_forks=1), 1, lambda path, depth: 0)
    budget.enter("r0")
    budget.claim("r0", 1)
    budget.settle()
    for path in ("r0", "r0/1.1"):
        budget.claim(path, 1)
    notes = [(grant.opened, grant.note) for grant in budget.settle()]
    assert notes == [(0, "max_forks reached")] * 2
    assert not budget.can_still_open()


def test_child_paths_name_their_place() -> None:
    names = [child_path(p, d, n) for p, d, n in itertools.product(("r0", "r0/1.1"), (1, 2), (1, 2))]
    assert len(set(names)) == len(names)
    assert names[0] == "r0/1.1"
