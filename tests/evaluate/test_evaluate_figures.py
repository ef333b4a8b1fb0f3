"""The figures of a set from rows made by hand."""

import json

import pytest
from eval_world import sample

from arpo.evaluate.figures import SetFigures, cost, figures, question_scores
from arpo.evaluate.intervals import bootstrap, wilson
from arpo.evaluate.samples import Sample
from arpo.evaluate.settings import PriceSettings
from arpo.reward.verdict import Verdict


def question(name: str, *scores: float | None, answers: str = "", **more: object) -> list[Sample]:
    """One question's rows; `answers`: one letter each, "-" for none."""
    said = answers or "abcdefgh"
    return [
        sample(name, number, score, None if said[number] == "-" else said[number], **more)
        for number, score in enumerate(scores)
    ]


def found(*questions: list[Sample], passes: tuple[int, ...] = (1,), prices: PriceSettings | None = None) -> SetFigures:
    same = lambda first, second: first.lower() == second.lower()
    return figures(questions, ("em",), passes=passes, prices=prices or PriceSettings(), same=lambda task: same, seed=3)


def test_one_answer_each_is_an_accuracy_with_wilsons_interval() -> None:
    figure = found(question("a", 1.0), question("b", 0.0), question("c", 1.0))
    assert figure.headline is not None
    assert (figure.headline.accuracy, figure.headline.n, figure.headline.ci95) == (2 / 3, 3, wilson(2, 3))
    assert figure.passes[1] == figure.headline == figure.vote


def test_pass_at_k_is_unbiased_and_over_questions() -> None:
    figure = found(question("a", 1, 0, 0, 0), question("b", 0, 0, 0, 0), question("c", 1, 1, 0, 0), passes=(1, 2, 4))
    values = {k: value.accuracy for k, value in figure.passes.items() if value is not None}
    assert values == pytest.approx({1: (1 / 4 + 0 + 1 / 2) / 3, 2: (1 / 2 + 0 + 5 / 6) / 3, 4: 2 / 3})
    assert figure.passes[2] is not None
    assert figure.passes[2].ci95 == bootstrap([1 / 2, 0, 5 / 6], seed=3)


def test_the_vote_takes_the_largest_group() -> None:
    figure = found(
        question("a", 0, 1, 1, answers="xyY"), question("b", 1, 0, 0, answers="p-q"), question("c", 0, answers="-")
    )
    assert figure.vote is not None
    assert figure.vote.accuracy == 2 / 3


def test_what_has_no_verdict_is_left_out_and_counted() -> None:
    lost = question("a", None, 1.0)
    lost[0] = sample("a", 0, None, None, lost=True)
    figure = found(lost, question("b", None, 0.0), question("c", None, None), passes=(1, 2))
    assert figure.headline is not None
    assert (figure.headline.accuracy, figure.headline.n) == (0.5, 2)
    assert (figure.lost, figure.unjudged) == (1, 3)
    assert figure.passes[2] is None
    assert figure.vote is not None
    assert figure.vote.n == 2
    assert question_scores([lost, question("c", None)], "em") == [1.0, None]


def test_nothing_at_all_has_a_verdict() -> None:
    figure = found(question("a", None), question("b", None))
    assert (figure.headline, figure.vote, figure.passes[1], dict(figure.families)) == (None, None, None, {})
    assert json.loads(json.dumps(figure.to_dict()))["metrics"] == {"em": None}
    with pytest.raises(ValueError, match="no samples"):
        found()


def test_types_have_rows_of_their_own() -> None:
    figure = found(question("a", 1.0, family="x"), question("b", 0.0, family="y"), question("c", 0.0, family="x"))
    assert {name: (value.accuracy, value.n) for name, value in figure.families.items()} == {"x": (0.5, 2), "y": (0, 1)}


def test_shares_of_what_went_wrong() -> None:
    figure = found(question("a", 0, 0, answers="-x", faults=1), question("b", 1, 0, finish="length"))
    assert (figure.unanswered, figure.malformed, figure.cut) == (0.25, 0.5, 0.5)


def test_costs_are_added_up_and_priced() -> None:
    calls = {"ran": {"search": 3, "python": 1}, "free": {"search": 1}}
    verdicts = {"em": Verdict(1.0, by="judge"), "x": Verdict(0.0, by="cache")}
    rows = [
        sample("a", 0, aside_tokens=90, seconds=4.0, at=5.0, **calls),
        sample("a", 1, ran={"search": 1}, failed={"python": 2}, at=5.0),
        sample("b", 0, verdicts=verdicts, attempt=1, seconds=2.0, at=2.5),
    ]
    prices = PriceSettings(sampled_tokens=1e6, read_tokens=1e4, tools={"search": 0.5}, judgement=2.0)
    total = cost(rows, prices)
    assert (total.sampled, total.aside, total.read, total.results) == (30, 90, 300, 15)
    assert (total.tools["search"].ran, total.tools["search"].free) == (4, 1)
    assert (total.tools["python"].ran, total.tools["python"].failed) == (1, 2)
    assert (total.seconds, total.judgements) == (4.0 + 2.0, 1)
    assert total.money == pytest.approx({"model": 120 + 3, "tools": 2, "judge": 2, "total": 127})
    assert cost(rows, PriceSettings()).money is None


def test_grades_of_a_judge_are_counted() -> None:
    rows = [[sample(str(i), verdicts={"em": Verdict(0.0, word, by="judge")})] for i, word in enumerate("ABB")]
    assert found(*rows).grades == {"em": {"A": 1, "B": 2}}
    assert found(question("a", 1.0)).grades == {}
