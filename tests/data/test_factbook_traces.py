"""Demonstrations: the format, what is trainable, what leaks (nothing), and that invented ones are consistent."""

import random
import re
from collections import Counter

import pytest

from arpo.data.factbook.facts import load_facts
from arpo.data.factbook.traces import EXPERT, LOOKUPS_FIRST, TraceSource, draw_strategy, make_traces
from arpo.data.factbook.views import InventedView, random_digits

FACTS = load_facts()
CLEAN = list(make_traces(400, 5, "clean"))
VARIED = list(make_traces(400, 5, "varied"))
POLICY = re.compile(
    r"(<think> [^<>]+</think>)?(<search> [^<>]+</search>|<python>[^<]+</python>|<answer> .*</answer><eos>)"
)


def joined(trace, trainable: bool) -> list[str]:
    return [text for text, flag in trace.pieces if flag == trainable]


@pytest.mark.parametrize("trace", [*CLEAN[:60], *VARIED[:60]], ids=lambda trace: trace.task.question[:30])
def test_format(trace):
    assert trace.pieces[0] == (f" {trace.task.question}", False)
    assert all(text.startswith("<result> ") and text.endswith("</result>") for text in joined(trace, False)[1:])
    assert not any("<result>" in text or "</result>" in text for text in joined(trace, True))
    segments = re.split(r"<result>.*?</result>", "".join(text for text, _ in trace.pieces[1:]))
    for segment in segments:
        last = segment[segment.rfind("<think>") :] if "<think>" in segment else segment
        assert POLICY.fullmatch(last), segment
    assert segments[-1].endswith("</answer><eos>")


def test_experts_are_always_right_and_always_use_the_tools():
    assert all(trace.right for trace in CLEAN)
    for trace in CLEAN:
        text = "".join(text for text, _ in trace.pieces)
        needs_python = trace.task.provenance["operation"] != "get"
        assert ("<python>" in text) == needs_python
        assert f"\\boxed{{ {trace.task.answers[0]} }}" in text


def test_varied_strategies_are_of_different_worth():
    assert 0.6 < sum(trace.right for trace in VARIED) / len(VARIED) < 0.95
    texts = [
        "".join(text for text, _ in trace.pieces) for trace in VARIED if trace.task.provenance["operation"] != "get"
    ]
    with_python = sum("<python>" in text for text in texts) / len(texts)
    assert 0.4 < with_python < 0.8
    assert any("<think> no " in text for text in texts)


def test_nothing_held_out_leaks():
    """Real names in a trace are training names, and no passage of a held-out pair is shown."""
    held = {fact.passage for fact in FACTS if FACTS.heldout(fact)}
    names = {name for name in FACTS.heldout_countries if len(name) > 5}
    for trace in CLEAN + VARIED:
        text = "".join(text for text, _ in trace.pieces)
        passages = [p for r in re.findall(r"<result> (.*?)</result>", text) for p in r.split(" ; ")]
        assert held.isdisjoint(passages)
        shown = {re.split(r" \| ", passage)[0] for passage in passages}
        assert names.isdisjoint(shown)


def test_most_traces_rename_the_countries():
    real = [any(name in trace.task.question for name in FACTS.countries if len(name) > 5) for trace in CLEAN]
    assert 0.2 < sum(real) / len(real) < 0.5


def test_lookups_come_first():
    source, rng = TraceSource(FACTS), random.Random(0)
    early = Counter(source.draw(rng, "clean", LOOKUPS_FIRST / 2).task.provenance["family"] for _ in range(150))
    late = Counter(source.draw(rng, "clean", 1.0).task.provenance["family"] for _ in range(150))
    assert early["lookup"] > 0.7 * 150 > 0.45 * 150 > late["lookup"]


def test_equal_arguments_equal_traces():
    assert list(make_traces(20, 5, "varied")) == VARIED[:20]


def test_an_invented_view_is_consistent_and_keeps_the_shape():
    view = InventedView(FACTS, random.Random(1))
    fact = FACTS.get("France", "population")
    assert view.fact(fact) == view.fact(fact)
    assert view.fact(fact).country == view.name("France") != "France"
    assert re.fullmatch(r"\d\d,\d{3},\d{3} people", view.fact(fact).text)
    assert view.fact(fact).text.replace(",", "") == f"{view.fact(fact).value} people"
    border = view.fact(FACTS.get("Portugal", "longest border"))
    assert border.value == view.name("Spain")
    assert re.fullmatch(r"-[1-9]\d\.\d", random_digits(random.Random(0), "-12.3"))
    assert random_digits(random.Random(0), "0").startswith("0")


def test_the_expert_is_one_of_the_varied_strategies():
    rng = random.Random(0)
    drawn = Counter(draw_strategy(rng) for _ in range(500))
    assert drawn[EXPERT] > 20
    assert len(drawn) == 16
