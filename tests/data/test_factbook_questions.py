"""Gold answers recomputed from the text of the questions, and the split kept."""

import collections
import re
from fractions import Fraction

import pytest

from arpo.data.factbook.attributes import BY_KEY, CAPITAL
from arpo.data.factbook.facts import load_facts
from arpo.data.factbook.questions import FAMILIES, Source, make_tasks
from arpo.errors import DataError

FACTS = load_facts()
NAMES = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(FACTS.countries, key=len)[::-1]))
TASKS = {split: make_tasks(split, 400, 3) for split in ("train", "heldout")}
EVERY = [task for tasks in TASKS.values() for task in tasks]


def named(question: str) -> list[str]:
    return NAMES.findall(question)


def subjects(task) -> list[str]:
    """The countries whose value counts, found out from the question's words alone."""
    family = task.provenance["family"]
    if family == "chain_capital":
        capital = task.question.split("whose capital is ")[1].rstrip("?")
        return [name for name, c in FACTS.countries.items() if CAPITAL in c.facts and c.facts[CAPITAL].value == capital]
    names = named(task.question)
    if family == "chain_border":
        return [FACTS.countries[names[-1]].neighbours[0][0]]
    if family == "superlative":
        return [other for other, _ in FACTS.countries[names[0]].neighbours]
    return names


def value(country: str, attribute: str) -> Fraction:
    return Fraction(re.match(r"-?[\d,.]+", FACTS.get(country, attribute).text)[0].replace(",", ""))


def number_gold(task) -> Fraction:
    values = [value(name, task.provenance["attribute"]) for name in subjects(task)]
    question = task.question
    if "ratio" in question or question.startswith("Divide"):
        return values[0] / values[1]
    if "sum" in question or question.startswith("Add"):
        return values[0] + values[1]
    return values[0] - values[1] if "minus" in question or "exceed" in question else values[0]


@pytest.mark.parametrize("task", [t for t in EVERY if t.kind == "number"], ids=lambda t: t.id)
def test_numbers(task):
    rounding = Fraction(1, 100) if "2 decimals" in task.question else Fraction(1, 10**9)
    assert abs(Fraction(task.answers[0]) - number_gold(task)) <= rounding * Fraction(51, 100)


@pytest.mark.parametrize("task", [t for t in EVERY if t.kind == "exact"], ids=lambda t: t.id)
def test_names(task):
    names, attribute = subjects(task), task.provenance["attribute"]
    if BY_KEY[attribute].kind == "name":
        assert task.answers == (FACTS.get(names[0], attribute).value,)
        return
    values = sorted(names, key=lambda name: value(name, attribute))
    smallest = re.search(r"\bsmall(er|est)\b", task.question)
    assert task.answers == ((values if smallest else values[::-1])[0],)


def test_the_split_is_kept():
    for task in TASKS["train"]:
        for name in subjects(task):
            assert not FACTS.heldout(FACTS.get(name, task.provenance["attribute"]))
        assert FACTS.heldout_countries.isdisjoint(named(task.question))
    for task in TASKS["heldout"]:
        if task.provenance["family"] in ("chain_border", "superlative"):
            bridge = "longest border" if task.provenance["family"] == "chain_border" else "neighbours"
            assert FACTS.heldout(FACTS.get(named(task.question)[-1 if bridge[0] == "l" else 0], bridge))
        else:
            assert all(FACTS.heldout(FACTS.get(name, task.provenance["attribute"])) for name in subjects(task))


def test_families_follow_the_weights():
    seen = collections.Counter(task.provenance["family"] for task in EVERY)
    assert set(seen) == set(FAMILIES)
    assert seen["lookup"] > 2 * seen["comparison"] > 0


def test_equal_arguments_equal_tasks_and_no_question_twice():
    assert make_tasks("heldout", 400, 3) == TASKS["heldout"]
    assert make_tasks("heldout", 50, 4) != TASKS["heldout"][:50]
    assert len({task.question for task in TASKS["heldout"]}) == 400
    assert len({task.id for task in EVERY}) == len(EVERY)


def test_families_and_weights_limit_the_draw():
    tasks = make_tasks("train", 40, 0, families=["lookup", "superlative"], weights={"superlative": 1.0})
    assert {task.provenance["family"] for task in tasks} == {"superlative"}
    assert not any(task.kind == "number" for task in tasks)


def test_an_unknown_family_is_named_with_the_nearest():
    with pytest.raises(DataError, match="'looukp': did you mean 'lookup'"):
        make_tasks("train", 1, 0, families=["looukp"])
    with pytest.raises(DataError, match="no factbook question family has a weight above zero"):
        make_tasks("train", 1, 0, families=["lookup"], weights={"arithmetic": 1.0})


def test_more_questions_than_there_are():
    with pytest.raises(DataError, match="ask for fewer"):
        make_tasks("heldout", 2400, 0, families=["superlative"])


def test_needs_lists_the_way_to_the_answer():
    import random

    from arpo.data.factbook.views import View

    question = Source("train", FACTS).draw(random.Random(0), "superlative", View(FACTS))
    bridge, *rest = question.needs(FACTS)
    assert (bridge.country, bridge.attribute) == (question.anchor, "neighbours")
    assert [fact.country for fact in rest] == list(question.subjects)
