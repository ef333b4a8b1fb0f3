"""Results of an evaluation and the comparison of two, from trees made by hand."""

import json

import pytest
from random_trees import segment, small_tree

from arpo.errors import ArpoError
from arpo.evaluate.compare import compare
from arpo.evaluate.intervals import wilson
from arpo.evaluate.result import accuracy, summarise
from arpo.task import ask
from arpo.tree import Finish, Outcome, RolloutTree, Source


def single(outcome: Outcome) -> RolloutTree:
    finish = Finish.ERROR if outcome.reward is None else Finish.STOP
    segments = (segment([1], Source.PROMPT), segment([2, 3], Source.POLICY, 0, finish=finish))
    return RolloutTree("t", segments, (1,), outcomes=(outcome,)).validate()


def right(bonus: float = 0.1) -> RolloutTree:
    return single(Outcome(1.0 + bonus, "42", {"accuracy": 1.0, "multi_tool": bonus}))


def wrong() -> RolloutTree:
    return single(Outcome(0.0, "41", {"accuracy": 0.0}))


def lost() -> RolloutTree:
    return single(Outcome(None))


def tasks(*families: str):
    return [ask("?", "42", id=str(i), family=family) for i, family in enumerate(families)]


def test_accuracy_counts_answers_not_bonuses_nor_penalties():
    costly = single(Outcome(-0.5, "42", {"accuracy": 1.0, "tool_cost": -1.5}))
    found = summarise(tasks("a", "a", "a", "a"), [right(), right(0.0), costly, wrong()], 2.0)
    assert found.accuracy == 0.75
    assert found.ci95 == wilson(3, 4)
    assert found.rewards == (1.1, 1.0, -0.5, 0.0)


def test_what_the_infrastructure_lost_is_left_out_and_counted():
    found = summarise(tasks("a", "a", "b", "b"), [right(), lost(), wrong(), lost()], 2.0)
    assert (found.accuracy, found.n, found.failed) == (0.5, 2, 2)
    assert found.scores == (1.0, None, 0.0, None)
    assert {name: (family.accuracy, family.n) for name, family in found.per_family.items()} == {
        "a": (1, 1),
        "b": (0, 1),
    }
    with pytest.raises(ArpoError, match="none of 1 evaluated questions could be scored"):
        summarise(tasks("a"), [lost()], 1.0)


def test_several_answers_to_a_question_are_one_observation():
    found = summarise(tasks("a"), [small_tree().with_outcomes([*small_tree().outcomes[:2], Outcome(None)])], 1.0)
    assert found.scores == (0.5,)
    assert (found.n, found.failed) == (1, 1)
    assert found.generated_tokens == 8
    assert found.tool_calls == 1


def test_partial_credit_takes_the_bootstrap():
    binary, partial = accuracy([1.0, 0.0] * 50), accuracy([0.5, 0.25] * 50)
    assert binary.ci95 == wilson(50, 100)
    assert partial.ci95.high - partial.ci95.low < 0.06
    assert accuracy([0.5, 0.25] * 50) == partial


def test_figures_are_plain_json():
    found = summarise(tasks("a", "b"), [right(), wrong()], 2.5)
    figures = json.loads(json.dumps(found.to_dict()))
    assert figures["heldout_accuracy"] == 0.5
    assert figures["ci95"] == list(wilson(1, 2))
    assert figures["per_family"]["a"] == {"accuracy": 1.0, "ci95": list(wilson(1, 1)), "n": 1}
    assert {"n", "generated_tokens", "tool_calls", "seconds"} <= set(figures)
    row = found.metrics()
    assert (row["heldout/accuracy"], row["heldout/n"], row["heldout/b/accuracy"]) == (0.5, 2.0, 0.0)
    assert all(isinstance(value, float) for value in row.values())


def test_comparison_is_paired_and_drops_lost_questions():
    first, second = [0.0, 1.0, None, 0.0] * 50, [1.0, 1.0, 1.0, None] * 50
    found = compare(first, second)
    assert found.value == 0.5
    assert found.significant
    assert compare(second, first).value == -0.5
    assert compare(first, second) == found
    with pytest.raises(ValueError, match="not the same questions: 200 and 199"):
        compare(first, second[1:])


def test_the_same_answers_differ_by_nothing():
    scores = [1.0, 0.0, 1.0]
    found = compare(scores, scores)
    assert (found.value, found.low, found.high, found.significant) == (0, 0, 0, False)
    assert found._replace(low=0.1, high=0.2).significant
