"""The gradient study: its toy is exact, its groups are the rollout room's, and it finds what theory says."""

import json
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest

from arpo.cli import main
from arpo.credit import CreditSettings, credit_settings
from arpo.study.enumeration import BUDGETS, INITIAL, RULES, SCARCE, groups
from arpo.study.episode import HISTORIES, OUTCOMES, expected_reward
from arpo.study.estimators import EPISODE, ESTIMATORS, RULE_LABELS
from arpo.study.gradient import FAMILIES, READ_ENTROPIES, Row, cluster, coefficients, expectation, measure

PREDICTABLE = ("iid", "uniform", "state", "after_window")
ADAPTIVE = ("state", "after_window", "before_window")
MIXED = [one for one in cluster(groups(EPISODE, "state")) if len(set(one.groups[0].rewards)) > 1]


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    return {(row.family, row.rule): row for row in measure(EPISODE, ("tree", "rloo", "soft", "hard", "grpo"))}


def test_the_gradient_is_the_finite_difference_of_the_expected_reward():
    logits, step = EPISODE.logits, 1e-6
    for place in np.ndindex(logits.shape):
        moved = [logits.copy(), logits.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (expected_reward(one, EPISODE.reward_O) for one in moved)
        assert EPISODE.gradient.reshape(logits.shape)[place] == pytest.approx((up - down) / (2 * step), abs=1e-9)


def test_the_expected_reward_is_the_sum_over_outcomes():
    outcomes = EPISODE.outcomes()
    assert len(outcomes) == HISTORIES + 1
    assert EPISODE.expected_reward == pytest.approx(sum(p * EPISODE.reward(pairs[-1]) for pairs, p in outcomes))


@pytest.mark.parametrize("rule", RULES)
def test_groups_are_valid_trees_and_their_probabilities_sum_to_one(rule):
    found = groups(EPISODE, rule)
    assert sum(group.probability for group in found) == pytest.approx(1, abs=1e-12)
    sizes = {len(group.leaves) for group in found}
    assert sizes == ({2, 3, 4} if rule in ADAPTIVE else {4})
    for group in found[:: len(found) // 40]:
        tree = group.tree.validate()
        ids = np.concatenate([segment.tokens for segment in tree.segments if segment.is_policy])
        assert np.array_equal(ids - 3, np.array(group.pairs) % 2)


@pytest.mark.parametrize("rule", ["uniform", "state", "after_window", "before_window"])
def test_what_grows_from_a_root_is_an_ordinary_trajectory_unless_the_rule_looked_ahead(rule):
    """The mean over a root's trajectories, over all groups, is the policy's distribution of outcomes."""
    share, policy = np.zeros(OUTCOMES), np.zeros(OUTCOMES)
    for group in groups(EPISODE, rule):
        ends: dict[int, list[int]] = {}
        for leaf in group.leaves:
            ends.setdefault(root_of(group, leaf), []).append(group.nodes[leaf][1][-1] + 1 - HISTORIES)
        for outcomes in ends.values():
            np.add.at(share, outcomes, group.probability / len(outcomes) / INITIAL)
    for pairs, probability in EPISODE.outcomes():
        policy[pairs[-1] + 1 - HISTORIES] = probability
    worst = np.abs(share - policy).max()
    assert worst > 1e-3 if rule == "before_window" else worst < 1e-12


def root_of(group, node) -> int:
    while group.nodes[node][2] > 0:
        node = group.nodes[node][2]
    return node


@pytest.mark.parametrize("rule", PREDICTABLE)
def test_tree_credit_is_unbiased_under_every_predictable_rule(rows, rule):
    row = rows["tree", rule]
    assert row.off_direction < 1e-9
    assert row.scale == pytest.approx(1, abs=1e-9)
    assert row.bias < 1e-9


def test_leave_one_out_is_unbiased_on_independent_trajectories_alone(rows):
    assert rows["rloo", "iid"].bias < 1e-9
    assert rows["rloo", "iid"].variance == pytest.approx(rows["tree", "iid"].variance)
    assert rows["rloo", "state"].off_direction > 0.02


def test_a_standard_deviation_alone_changes_the_scale_and_not_the_direction(rows):
    assert rows["grpo", "iid"].off_direction < 1e-6
    assert rows["grpo", "iid"].bias > 0.05


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_soft_credit_is_biased_where_branching_is_adaptive(rows, rule):
    assert rows["soft", rule].off_direction > 0.02


def test_soft_and_hard_have_one_gradient_at_ratio_one(rows):
    for rule in RULES:
        assert rows["hard", rule].off_direction == pytest.approx(rows["soft", rule].off_direction, abs=1e-9)


def test_branching_before_the_window_biases_tree_credit_too(rows):
    assert rows["tree", "before_window"].off_direction > 0.05


@pytest.mark.parametrize("rule", ["state_filled", "after_window_filled"])
def test_filling_a_group_up_does_not_bias_tree_credit(rows, rule):
    """How many fresh trajectories come depends on the first roots' calls; their weight does not."""
    assert rows["tree", rule].off_direction < 1e-9
    assert rows["rloo", rule].off_direction > 0.02


@pytest.fixture(scope="module")
def scarce() -> dict[tuple[str, str], Row]:
    return {(row.family, row.rule): row for row in measure(EPISODE, ("tree", "soft"), BUDGETS)}


@pytest.mark.parametrize("rule", BUDGETS)
def test_groups_with_a_scarce_budget_are_whole(rule):
    found = groups(EPISODE, rule)
    assert sum(group.probability for group in found) == pytest.approx(1, abs=1e-12)
    assert {len(group.leaves) for group in found} == {SCARCE}
    for group in found[:: len(found) // 40]:
        group.tree.validate()


@pytest.mark.parametrize("rule", ["scarce_path", "scarce_spread"])
def test_a_budget_that_ranks_by_what_came_before_does_not_bias_tree_credit(scarce, rule):
    """Two roots contend for one branch: who gets it depends on the other's calls, never on what follows."""
    assert scarce["tree", rule].off_direction < 1e-9
    assert scarce["tree", rule].scale == pytest.approx(1, abs=1e-9)
    assert scarce["soft", rule].off_direction > 0.02


def test_the_two_orders_really_choose_differently():
    by_rule = [{}, {}]
    for shares, rule in zip(by_rule, ("scarce_path", "scarce_spread"), strict=True):
        for group in groups(EPISODE, rule):
            shape = tuple((kind, pairs) for kind, pairs, _ in group.nodes)
            shares[shape] = shares.get(shape, 0.0) + group.probability
    assert by_rule[0].keys() != by_rule[1].keys()


def test_ranking_by_what_follows_the_branching_point_would_be_noticed(monkeypatch):
    """The same order, but the gain read off the answer's entropy, which the first continuation chose."""
    from arpo.study import enumeration

    honest = enumeration._verdict

    def peeking(episode, rule, pairs):
        return replace(honest(episode, rule, pairs), gain=float(pairs[-1] % 2))

    monkeypatch.setattr(enumeration, "_verdict", peeking)
    (row,) = measure(EPISODE, ["tree"], ["scarce_spread"])
    assert row.off_direction > 0.005


def test_a_first_trajectory_that_sizes_the_group_biases_tree_credit(scarce):
    """Its own weight 1 / N depends on what it sampled."""
    assert scarce["tree", "monitored"].off_direction > 0.02


def test_the_study_would_notice_a_weight_that_depends_on_the_number_of_top_ups(rows, monkeypatch):
    """With top-ups taken for first roots, their number enters the weight 1 / N."""
    monkeypatch.setattr("arpo.credit.tree._top_ups", lambda _scored: [])
    (row,) = measure(EPISODE, ["tree"], ["state_filled"])
    assert 0.005 < row.off_direction < rows["tree", "before_window"].off_direction


def test_a_tree_has_more_variance_at_equal_leaves_and_pays_per_call(rows):
    tree, iid = rows["tree", "uniform"], rows["rloo", "iid"]
    assert tree.trajectories == pytest.approx(iid.trajectories)
    assert tree.variance > iid.variance
    assert tree.variance_calls < iid.variance_calls


def test_costs_count_what_is_sampled_once(rows):
    costs = {rule: (rows["tree", rule].tokens, rows["tree", rule].calls) for rule in ("iid", "uniform")}
    assert costs["iid"] == pytest.approx((4 * 4, 4))
    assert costs["uniform"] == pytest.approx((2 * (1 + 2 * 3), 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_credit_sees_no_more_than_what_it_is_cached_by(family):
    """Other groups of a cluster, asked afresh, get the same coefficients (unless the family reads entropies)."""
    settings = credit_settings(family)
    largest = max(MIXED, key=lambda one: len(one.groups))
    expected, mass = coefficients(largest.groups[0], settings)
    others = [coefficients(group, settings) for group in largest.groups[1 :: max(1, len(largest.groups) // 20)]]
    same = all(np.allclose(got, expected, atol=1e-12) and weight == mass for got, weight in others)
    assert same == (family not in READ_ENTROPIES)


def test_estimates_of_families_that_read_entropies_are_those_of_every_group_by_itself():
    settings, found = credit_settings("aepo"), groups(EPISODE, "after_window")
    mean, divisor = np.zeros(2 * HISTORIES), 0.0
    for group in found:
        coefficient, mass = coefficients(group, settings)
        mean += group.probability * coefficient @ EPISODE.scores[group.pairs]
        divisor += group.probability * mass
    assert np.allclose(expectation(EPISODE, cluster(found), settings)[0], mean / divisor, atol=1e-9)


def test_every_family_and_every_rule_is_in_the_study():
    union = get_args(get_args(CreditSettings)[0])
    assert set(FAMILIES) == {model.model_fields["type"].default for model in union}
    assert set(RULE_LABELS) == {*RULES, *BUDGETS}
    assert {one.family for one in ESTIMATORS} <= set(FAMILIES)


def test_the_command_prints_and_writes_json_and_svg(tmp_path, capsys):
    data, picture = tmp_path / "gradient.json", tmp_path / "gradient.svg"
    assert main(["study", "gradient", "--family", "tree", "--json", str(data), "--svg", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "off-direction" in printed
    assert "x calls" in printed, "no column may be cut off where the terminal is narrow"
    written = json.loads(data.read_text())
    assert [row["rule"] for row in written["rows"]] == list(RULES)
    assert all(row["family"] == "tree" for row in written["rows"])
    assert written["expected_reward"] == EPISODE.expected_reward
    drawn = ElementTree.parse(picture).getroot()
    assert drawn.tag.endswith("svg")
    assert len([mark for mark in drawn.iter() if (mark.get("class") or "").startswith(("dot", "ring"))]) == 4 * len(
        RULES
    )


def test_chosen_ways_of_branching_alone_are_measured(tmp_path, capsys):
    data, picture = tmp_path / "gradient.json", tmp_path / "gradient.svg"
    chosen = [part for rule in BUDGETS for part in ("--rule", rule)]
    asked = ["study", "gradient", "--family", "tree", *chosen, "--json", str(data), "--svg", str(picture)]
    assert main(asked) == 0
    assert [row["rule"] for row in json.loads(data.read_text())["rows"]] == list(BUDGETS)
    assert "scarce, spread" in picture.read_text()
    assert main(["study", "gradient", "--rule", "scarse"]) == 2
    assert "scarce_spread" in capsys.readouterr().err


def test_an_unknown_family_is_named(capsys):
    assert main(["study", "gradient", "--family", "tre"]) == 2
    assert "did you mean tree?" in capsys.readouterr().err
