"""Rewards over small trees: what is right, what is malformed, what was executed, and what is nobody's fault."""

import pytest
from pydantic import ValidationError
from reward_trees import Characters, call, chain, policy, segment

from arpo.reward.compose import score
from arpo.reward.settings import RewardSettings
from arpo.task import ask
from arpo.tree import Finish, Outcome, RolloutTree, Source

TASK = ask("How many?", "42", kind="number")
BOTH = ("s", call("search"), "p", call("python"), "\\boxed{42}")


def outcome(tree: RolloutTree, **settings) -> Outcome:
    (one,) = score(tree, TASK, Characters(), RewardSettings(**settings))
    return one


def test_right_wrong_malformed():
    assert outcome(chain("\\boxed{42}")).reward == 1.0
    assert outcome(chain("\\boxed{41}")).reward == 0.0
    assert outcome(chain("42")).reward == -1.0
    assert outcome(chain("!\\boxed{42}")).reward == -1.0


def test_the_reward_is_the_sum_of_its_parts():
    one = outcome(chain(*BOTH), success_bonus=0.5, tool_cost=0.01)
    assert one.parts == {
        "accuracy": 1.0,
        "success": 0.5,
        "multi_tool": 0.1,
        "format": 0.0,
        "tool_cost": -0.02,
        "redundant": 0.0,
        "overlong": 0.0,
    }
    assert one.reward == pytest.approx(1.58)
    assert one.answer == "42"


def test_a_malformed_trajectory_has_no_accuracy():
    one = outcome(chain("!\\boxed{42}"), success_bonus=0.5)
    assert (one.parts["accuracy"], one.parts["success"], one.parts["format"]) == (0.0, 0.0, -1.0)


def test_multi_tool_bonus_needs_both_tools_executed_and_a_right_answer():
    assert outcome(chain(*BOTH)).reward == pytest.approx(1.1)
    assert outcome(chain("s", call("search"), "s", call("search"), "\\boxed{42}")).reward == 1.0
    refused = call("python", "limit", executed=False)
    assert outcome(chain("s", call("search"), "p", refused, "\\boxed{42}")).reward == 1.0
    assert outcome(chain(*BOTH[:-1], "\\boxed{41}")).reward == 0.0
    assert outcome(chain(*BOTH), multi_tools=("search", "browse")).reward == 1.0
    assert outcome(chain(*BOTH), multi_tools=()).reward == 1.0


def test_a_call_that_failed_on_its_own_account_was_executed():
    failed = call("python", "tool_error")
    assert outcome(chain("s", call("search"), "p", failed, "\\boxed{42}")).reward == pytest.approx(1.1)


def test_costs_are_taken_off_whatever_the_answer():
    repeated = call("search", redundant=True)
    steps = ("s", call("search"), "s", repeated)
    costs = {"tool_cost": 0.1, "redundant_penalty": 0.25}
    assert outcome(chain(*steps, "\\boxed{42}"), **costs).reward == pytest.approx(1 - 0.2 - 0.25)
    assert outcome(chain(*steps, "\\boxed{41}"), **costs).reward == pytest.approx(-0.45)
    assert outcome(chain(*steps, "!"), **costs).reward == pytest.approx(-1.45)
    refused = call("search", "limit", executed=False)
    assert outcome(chain("s", refused, "\\boxed{42}"), tool_cost=0.1).reward == 1.0


def test_partial_accuracy():
    task = ask("Who?", "Barack Obama", kind="text")
    (one,) = score(chain("\\boxed{Barack Obama, the 44th president}"), task, Characters(), RewardSettings())
    assert one.reward == pytest.approx(2 / 3)


def test_settings_override_the_tasks_kind():
    tree = chain("\\boxed{-42}")
    assert outcome(tree).reward == 0.0
    assert outcome(tree, accuracy="f1").reward == 1.0


@pytest.mark.parametrize(
    "tree",
    [
        chain("s", call("search", "infra_error"), "\\boxed{42}"),
        chain("\\boxed{42}", last=Finish.ERROR),
    ],
)
def test_infrastructure_failures_have_no_reward(tree):
    assert outcome(tree) == Outcome(None)


def test_an_infrastructure_error_kept_on_the_policy_segment():
    event = call("search", "infra_error")
    tree = RolloutTree("t", (segment("Q", Source.PROMPT, -1), policy("s", 0, Finish.ERROR, event)), (1,)).validate()
    assert outcome(tree) == Outcome(None)


def test_only_what_the_policy_sampled_is_read():
    """Prompt and tool results hold the answer; a policy that gives none is malformed (case 51)."""
    one = outcome(chain("s", call("search"), "done"))
    assert (one.reward, one.answer) == (-1.0, None)


def test_pieces_cut_to_branch_are_read_as_one():
    """A window cut in the middle of `\\boxed{42}`; the other child answers differently."""
    segments = (
        segment("Q", Source.PROMPT, -1),
        policy("so \\box", 0, Finish.WINDOW),
        policy("ed{42}", 1),
        policy("ed{7}", 1),
    )
    tree = RolloutTree("t", segments, (2, 3)).validate()
    right, wrong = score(tree, TASK, Characters(), RewardSettings())
    assert (right.answer, right.reward) == ("42", 1.0)
    assert (wrong.answer, wrong.reward) == ("7", 0.0)


def test_an_earlier_answer_does_not_count():
    assert outcome(chain("\\boxed{42}", call("search"), "none")).reward == -1.0


def test_outcomes_come_in_leaf_order_and_fit_the_tree():
    segments = (segment("Q", Source.PROMPT, -1), policy("\\boxed{1}", 0), policy("\\boxed{42}", 0))
    tree = RolloutTree("t", segments, (2, 1)).validate()
    assert tree.with_outcomes(score(tree, TASK, Characters(), RewardSettings())).validate().rewards == (1.0, 0.0)


@pytest.mark.parametrize("wrong", [{"format_penalty": 1.0}, {"tool_cost": -1.0}, {"accuracy": "judge"}, {"bonus": 1}])
def test_settings_refuse_nonsense(wrong):
    with pytest.raises(ValidationError):
        RewardSettings(**wrong)
