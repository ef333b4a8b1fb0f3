"""Demonstrations: how a question is answered with the tools, written out in the pocket policy's format.

A demonstration is a list of pieces `(text, trainable)`: the question and the tools' results are not trainable, what
the policy would write is. Concatenated, the pieces are exactly what a rollout of the pocket policy looks like.

Two kinds. *Expert* demonstrations query with country and attribute and compute with Python. *Varied* ones mix
strategies of different worth: queries made of the question's own words, of the attribute or of the name alone;
searching again after a miss, or going on with what was found; Python, or mental arithmetic. They teach how the tools
are used and leave it to reinforcement learning to find out what pays.

Facts that are held out, and passages that name a held-out country, appear in no demonstration, not even among the
search results: traces are made with an index that lacks them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from arpo.data.factbook.attributes import BY_KEY, CAPITAL
from arpo.data.factbook.corpus import ensure_index
from arpo.data.factbook.facts import Fact, Facts, load_facts
from arpo.data.factbook.questions import (
    WEIGHTS,
    Question,
    Source,
    checked_weights,
    compute,
    expression,
    to_task,
)
from arpo.data.factbook.views import InventedView, View
from arpo.seeds import derive
from arpo.task import Task
from arpo.tools.search import NO_RESULTS, SearchIndex

Style = Literal["clean", "varied"]
QueryStyle = Literal["full", "phrase", "attribute", "name"]
TOP_K = 2
INVENTED = 0.6
"""Share of demonstrations in which countries are renamed and digits randomised."""
LOOKUPS_FIRST = 0.25
"""Until this part of the training is over, most demonstrations are lookups, and most are invented."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """The habits of one demonstration."""

    query: QueryStyle = "full"
    search_again: bool = True
    python: bool = True


EXPERT = Strategy()
QUERY_STYLES: Mapping[QueryStyle, float] = {"full": 0.5, "phrase": 0.16, "attribute": 0.17, "name": 0.17}
SEARCH_AGAIN = 0.6
PYTHON = 0.6


def draw_strategy(rng: random.Random) -> Strategy:
    """One strategy of the varied mixture."""
    query = rng.choices(list(QUERY_STYLES), list(QUERY_STYLES.values()))[0]
    return Strategy(query, rng.random() < SEARCH_AGAIN, rng.random() < PYTHON)


@dataclass(frozen=True, slots=True)
class Trace:
    """One demonstration. `pieces`: (text, trainable), in order; `right`: its answer is the task's."""

    pieces: list[tuple[str, bool]]
    task: Task
    right: bool


class _DeadEndError(Exception):
    """The facts asked for cannot be found by searching; another question is drawn."""


@dataclass
class TraceSource:
    """Draws demonstrations of the training split."""

    facts: Facts = field(default_factory=load_facts)
    index: SearchIndex = field(default_factory=lambda: ensure_index(training_only=True))
    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))

    def __post_init__(self) -> None:
        self.weights = checked_weights(None, self.weights)
        self._questions = Source("train", self.facts)
        self._by_id = {fact.id: fact for fact in self.facts}
        self._found: dict[str, list[Fact]] = {}

    def search(self, query: str) -> list[Fact]:
        """The best facts, best first; remembered, for queries repeat."""
        if query not in self._found:
            self._found[query] = [self._by_id[hit.document.id] for hit in self.index.query(query, TOP_K)]
        return list(self._found[query])

    def draw(self, rng: random.Random, style: Style, progress: float = 1.0) -> Trace:
        """One demonstration. `progress` in [0, 1] is how much of the training is over (lookups come first)."""
        early = progress < LOOKUPS_FIRST
        family = "lookup" if early and rng.random() < 0.8 else self._family(rng)
        invented = rng.random() < (0.9 if early else INVENTED)
        strategy = draw_strategy(rng) if style == "varied" else EXPERT
        while True:
            view = InventedView(self.facts, rng) if invented else View(self.facts)
            question = self._questions.draw(rng, family, view)
            try:
                return _Demonstration(self, rng, view, question, strategy).write()
            except _DeadEndError:
                continue

    def _family(self, rng: random.Random) -> str:
        return rng.choices(list(self.weights), list(self.weights.values()))[0]


class _Demonstration:
    """Writes one trace, searching the real index and showing everything as the view has it."""

    def __init__(
        self, source: TraceSource, rng: random.Random, view: View, question: Question, strategy: Strategy
    ) -> None:
        self._source, self._rng, self._view = source, rng, view
        self._question, self._strategy = question, strategy
        self._pieces: list[tuple[str, bool]] = [(f" {question.text}", False)]

    def write(self) -> Trace:
        subjects = self._bridge()
        self._think(f"{self._question.attribute} of {' and '.join(subjects)}")
        values = [self._find(real, shown) for real, shown in zip(self._question.subjects, subjects, strict=True)]
        answer = self._conclude(subjects, values)
        self._pieces.append((f"<answer> \\boxed{{ {answer} }}</answer><eos>", True))
        task = to_task(self._question, "factbook/trace", "train")
        return Trace(self._pieces, task, answer == self._question.answer)

    def _bridge(self) -> list[str]:
        """The shown names of the subjects, looked up first where the question does not name them."""
        question = self._question
        names = [self._view.name(subject) for subject in question.subjects]
        if question.via is None or question.anchor is None:
            return names
        fact = self._source.facts.countries[question.anchor].facts[question.via]
        shown = self._view.fact(fact)
        start, shown_start = (fact.text, shown.text) if question.via == CAPITAL else (fact.country, shown.country)
        self._think(f"{question.via} {'' if question.via == CAPITAL else 'of '}{shown_start}")
        if fact not in self._search(f"{start} {question.via}", f"{shown_start} {question.via}"):
            raise _DeadEndError
        return names

    def _find(self, subject: str, shown: str) -> str:
        """Search for the subject's attribute by the strategy; the value found, which after a miss may be another's."""
        key, style = self._question.attribute, self._strategy.query
        wanted = self._source.facts.countries[subject].facts[key]
        hits = self._search(_query(style, subject, self._question), _query(style, shown, self._question))
        usable = [hit for hit in hits if BY_KEY[hit.attribute].kind == BY_KEY[key].kind]
        if wanted not in hits and style != "full" and (self._strategy.search_again or not usable):
            self._think(f"no {key} of {shown}")
            hits = self._search(_query("full", subject, self._question), _query("full", shown, self._question))
            style = "full"
        if wanted not in hits and style == "full":
            raise _DeadEndError
        value = self._view.fact(wanted if wanted in hits else usable[0]).value
        self._think(f"{shown}: {value}")
        return value

    def _conclude(self, names: Sequence[str], values: list[str]) -> str:
        """From the values to the answer, with Python or in the head."""
        operation = self._question.operation
        if operation == "get":
            return values[0]
        if operation == "ratio" and float(values[1]) == 0:
            raise _DeadEndError
        result = compute(operation, values)
        if self._strategy.python:
            self._pieces.append((f"<python>print({expression(operation, values)})</python>", True))
            self._pieces.append((f"<result> {result}</result>", False))
        if operation in ("max", "min"):
            numbers = [float(value) for value in values]
            return names[numbers.index(float(result))]
        return result

    def _think(self, text: str) -> None:
        self._pieces.append((f"<think> {text}</think>", True))

    def _search(self, query: str, shown: str) -> list[Fact]:
        hits = self._source.search(query)
        self._rng.shuffle(hits)
        listed = " ; ".join(self._view.fact(hit).passage for hit in hits) or NO_RESULTS
        self._pieces.append((f"<search> {shown}</search>", True))
        self._pieces.append((f"<result> {listed}</result>", False))
        return hits


def _query(style: QueryStyle, name: str, question: Question) -> str:
    words = {
        "full": f"{name} {question.attribute}",
        "phrase": f"{name} {question.phrase}",
        "attribute": question.attribute,
        "name": name,
    }
    return words[style]


def make_traces(
    n: int, seed: int, style: Style = "clean", weights: Mapping[str, float] | None = None
) -> Iterator[Trace]:
    """`n` demonstrations, the same for equal arguments."""
    source = TraceSource(weights=dict(weights or WEIGHTS))
    for number in range(n):
        yield source.draw(random.Random(derive("factbook", "trace", style, seed, number)), style)
