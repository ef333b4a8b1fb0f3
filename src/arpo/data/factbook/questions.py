"""Questions with checkable gold answers, generated from the facts.

| family           | searches | what it takes                                                        |
|------------------|----------|----------------------------------------------------------------------|
| lookup           | 1        | copy one value                                                       |
| arithmetic       | 2        | difference, sum or ratio of two values                               |
| comparison       | 2        | which of two is larger or smaller (chance: one half)                 |
| three_way        | 3        | which of three is largest or smallest                                |
| chain_capital    | 2        | from a capital to its country, then one value                        |
| chain_border     | 2        | from a country to its longest border's other side, then one value    |
| superlative      | 3 to 4   | list a country's neighbours, then which has the largest or smallest  |

A training question needs no held-out fact. A held-out question's named countries (or their capitals) are all held
out, with every fact about them; only what lies at the far end of a border may be known.
"""

import difflib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from arpo.data.factbook.attributes import ASKED, BY_KEY, CAPITAL, LONGEST_BORDER, NEIGHBOURS, NUMERIC
from arpo.data.factbook.facts import Fact, Facts, load_facts
from arpo.data.factbook.views import View
from arpo.errors import DataError
from arpo.seeds import derive
from arpo.task import AnswerKind, Task, ask

Split = Literal["train", "heldout"]
Operation = Literal["get", "diff", "sum", "ratio", "max", "min"]

WEIGHTS: Mapping[str, float] = {
    "lookup": 0.25,
    "arithmetic": 0.25,
    "comparison": 0.10,
    "three_way": 0.10,
    "chain_capital": 0.10,
    "chain_border": 0.10,
    "superlative": 0.10,
}
FAMILIES: tuple[str, ...] = tuple(WEIGHTS)
_ARITHMETIC_OPERATIONS: tuple[Operation, ...] = ("diff", "sum", "ratio")
_EXTREMES: tuple[Operation, ...] = ("max", "min")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the way to its answer.

    `subjects`: the countries whose `attribute` is needed (real names). `via`: the bridging attribute of a chain or
    superlative, `anchor` the country it belongs to. `phrase`: the wording of the attribute in `text`.
    """

    family: str
    operation: Operation
    subjects: tuple[str, ...]
    attribute: str
    phrase: str
    text: str
    answer: str
    via: str | None = None
    anchor: str | None = None

    @property
    def kind(self) -> AnswerKind:
        numeric = self.operation in ("diff", "sum", "ratio") or (
            self.operation == "get" and BY_KEY[self.attribute].kind == "number"
        )
        return "number" if numeric else "exact"

    def needs(self, facts: Facts) -> list[Fact]:
        """Every fact on the way to the answer."""
        ids = [(subject, self.attribute) for subject in self.subjects]
        if self.via and self.anchor:
            ids.insert(0, (self.anchor, self.via))
        return [facts.countries[country].facts[attribute] for country, attribute in ids]


@dataclass
class Source:
    """Draws questions of one split. Build it once: it indexes which countries may be asked about which attribute."""

    split: Split
    facts: Facts = field(default_factory=load_facts)

    def __post_init__(self) -> None:
        wanted = self.split == "heldout"
        self._countries: dict[str, list[str]] = {key: [] for key in BY_KEY}
        for fact in self.facts:
            if self.facts.heldout(fact) == wanted:
                self._countries[fact.attribute].append(fact.country)
        shared = Counter(fact.value for fact in self.facts if fact.attribute == CAPITAL)
        self._capitals = [
            c for c in self._countries[CAPITAL] if shared[self.facts.countries[c].facts[CAPITAL].value] == 1
        ]

    def draw(self, rng: random.Random, family: str, view: View) -> Question:
        """One question of the family, worded in the view."""
        for _ in range(10_000):
            question = _FAMILY[family](self, rng, view)
            if question is not None:
                return question
        raise DataError(f"no {self.split} question of the family {family!r} can be made from the facts")

    def pick(self, rng: random.Random, attribute: str, count: int) -> list[str]:
        return rng.sample(self._countries[attribute], count)

    def pick_by_capital(self, rng: random.Random) -> str:
        """A country that its capital's name tells from all others (there are two Kingstons)."""
        return rng.choice(self._capitals)

    def allows(self, country: str, attribute: str) -> bool:
        """True if a named country may be asked about."""
        fact = self.facts.get(country, attribute)
        return fact is not None and self.facts.heldout(fact) == (self.split == "heldout")

    def allows_beyond(self, country: str, attribute: str) -> bool:
        """True if a country at the far end of a border may be asked about."""
        fact = self.facts.get(country, attribute)
        return fact is not None and (self.split == "heldout" or not self.facts.heldout(fact))


def _lookup(source: Source, rng: random.Random, view: View) -> Question | None:
    key = rng.choice(ASKED)
    (country,) = source.pick(rng, key, 1)
    name, phrase = view.name(country), rng.choice(BY_KEY[key].phrases)
    unit = f" in {BY_KEY[key].unit}" if BY_KEY[key].unit in ("km", "sq km", "years", "percent", "dollars") else ""
    text = rng.choice(
        (
            f"What is the {phrase} of {name}{unit}?",
            f"Tell me the {phrase} of {name}.",
            f"For {name}, what is the {phrase}?",
        )
    )
    return Question("lookup", "get", (country,), key, phrase, text, view.value(country, key))


def _arithmetic(source: Source, rng: random.Random, view: View) -> Question | None:
    key, operation = rng.choice(NUMERIC), rng.choice(_ARITHMETIC_OPERATIONS)
    pair = source.pick(rng, key, 2)
    values = [view.value(country, key) for country in pair]
    if operation == "ratio" and not 0.1 <= abs(_ratio(values)) <= 1e6:  # two decimals must say something
        return None
    a, b = (view.name(country) for country in pair)
    phrase = rng.choice(BY_KEY[key].phrases)
    text = rng.choice(_ARITHMETIC[operation]).format(p=phrase, a=a, b=b)
    rounding = ", to 2 decimals" if operation == "ratio" or any("." in value for value in values) else ""
    text = f"{text[:-1]}{rounding}{text[-1]}"
    return Question("arithmetic", operation, tuple(pair), key, phrase, text, compute(operation, values))


def _ratio(values: Sequence[str]) -> float:
    return float(values[0]) / float(values[1]) if float(values[1]) else 0.0


_ARITHMETIC = {
    "diff": ("What is the {p} of {a} minus that of {b}?", "By how much does the {p} of {a} exceed that of {b}?"),
    "sum": ("What is the sum of the {p} of {a} and {b}?", "Add the {p} of {a} to that of {b}."),
    "ratio": ("What is the ratio of the {p} of {a} to that of {b}?", "Divide the {p} of {a} by that of {b}."),
}


def _comparison(source: Source, rng: random.Random, view: View) -> Question | None:
    return _extreme(source, rng, view, "comparison", 2)


def _three_way(source: Source, rng: random.Random, view: View) -> Question | None:
    return _extreme(source, rng, view, "three_way", 3)


def _extreme(source: Source, rng: random.Random, view: View, family: str, count: int) -> Question | None:
    key, operation = rng.choice(NUMERIC), rng.choice(_EXTREMES)
    countries = source.pick(rng, key, count)
    answer = _winner(view, operation, countries, key)
    if answer is None:
        return None
    degree = _degree(operation, count)
    names = [view.name(country) for country in countries]
    phrase = rng.choice(BY_KEY[key].phrases)
    listed = f"{', '.join(names[:-1])} or {names[-1]}"
    text = rng.choice((f"Which has the {degree} {phrase}, {listed}?", f"Is the {phrase} {degree} in {listed}?"))
    return Question(family, operation, tuple(countries), key, phrase, text, answer)


def _chain_capital(source: Source, rng: random.Random, view: View) -> Question | None:
    key = rng.choice(ASKED)
    country = source.pick_by_capital(rng)
    if key == CAPITAL or not source.allows(country, key):
        return None
    phrase, capital = rng.choice(BY_KEY[key].phrases), view.value(country, CAPITAL)
    text = f"What is the {phrase} of the country whose capital is {capital}?"
    value = view.value(country, key)
    return Question("chain_capital", "get", (country,), key, phrase, text, value, CAPITAL, country)


def _chain_border(source: Source, rng: random.Random, view: View) -> Question | None:
    key = rng.choice(ASKED)
    (anchor,) = source.pick(rng, LONGEST_BORDER, 1)
    other = source.facts.countries[anchor].neighbours[0][0]
    if not source.allows_beyond(other, key):
        return None
    phrase = rng.choice(BY_KEY[key].phrases)
    text = f"What is the {phrase} of the country that shares the longest border with {view.name(anchor)}?"
    value = view.value(other, key)
    return Question("chain_border", "get", (other,), key, phrase, text, value, LONGEST_BORDER, anchor)


def _superlative(source: Source, rng: random.Random, view: View) -> Question | None:
    key, operation = rng.choice(NUMERIC), rng.choice(_EXTREMES)
    (anchor,) = source.pick(rng, NEIGHBOURS, 1)
    others = [name for name, _ in source.facts.countries[anchor].neighbours]
    if not all(source.allows_beyond(other, key) for other in others):
        return None
    answer = _winner(view, operation, others, key)
    if answer is None:
        return None
    phrase = rng.choice(BY_KEY[key].phrases)
    text = f"Which neighbour of {view.name(anchor)} has the {_degree(operation, len(others))} {phrase}?"
    return Question("superlative", operation, tuple(others), key, phrase, text, answer, NEIGHBOURS, anchor)


_FAMILY: Mapping[str, Callable[[Source, random.Random, View], Question | None]] = {
    "lookup": _lookup,
    "arithmetic": _arithmetic,
    "comparison": _comparison,
    "three_way": _three_way,
    "chain_capital": _chain_capital,
    "chain_border": _chain_border,
    "superlative": _superlative,
}


def _degree(operation: str, count: int) -> str:
    if count == 2:
        return "larger" if operation == "max" else "smaller"
    return "largest" if operation == "max" else "smallest"


def _winner(view: View, operation: str, countries: Sequence[str], key: str) -> str | None:
    """The name of the country with the extreme value, or None where two share it."""
    values = [float(view.value(country, key)) for country in countries]
    best = max(values) if operation == "max" else min(values)
    return view.name(countries[values.index(best)]) if values.count(best) == 1 else None


def expression(operation: Operation, values: Sequence[str]) -> str:
    """The Python expression that computes the operation; rounded to 2 decimals where a decimal point is involved."""
    if operation in ("max", "min"):
        return f"{operation}({','.join(values)})"
    joined = {"diff": "-", "sum": "+", "ratio": "/"}[operation].join(values)
    decimal = operation == "ratio" or any("." in value for value in values)
    return f"round({joined},2)" if decimal else joined


def compute(operation: Operation, values: Sequence[str]) -> str:
    """What Python prints for `expression`: integers stay integers, floats are rounded to 2 decimals."""
    numbers = [float(value) if "." in value else int(value) for value in values]
    if operation in ("max", "min"):
        return str(max(numbers) if operation == "max" else min(numbers))
    a, b = numbers
    result = {"diff": lambda: a - b, "sum": lambda: a + b, "ratio": lambda: a / b}[operation]()
    return str(round(result, 2)) if isinstance(result, float) else str(result)


def make_tasks(
    split: Split,
    n: int,
    seed: int,
    families: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> list[Task]:
    """`n` tasks with different questions, the same for equal arguments.

    `families` limits the families, `weights` (by family) says how often each comes; default WEIGHTS.
    Raises DataError for an unknown family, or where the split holds fewer than `n` different questions.
    """
    mix = checked_weights(families, weights)
    source = Source(split)
    view, seen = View(source.facts), set[str]()
    tasks: list[Task] = []
    for attempt in range(10 * n + 1000):
        if len(tasks) == n:
            return tasks
        rng = random.Random(derive("factbook", split, seed, attempt))
        family = rng.choices(list(mix), list(mix.values()))[0]
        question = source.draw(rng, family, view)
        if question.text not in seen:
            seen.add(question.text)
            tasks.append(to_task(question, f"factbook/{split}/{seed}/{len(tasks)}", split))
    if len(tasks) == n:
        return tasks
    raise DataError(
        f"the {split} split of the factbook gave only {len(tasks)} different questions of {n}: ask for fewer"
    )


def to_task(question: Question, id: str, split: Split) -> Task:
    """The question as a task; its provenance names split, family, operation and attribute."""
    return ask(
        question.text,
        question.answer,
        id=id,
        kind=question.kind,
        dataset="factbook",
        split=split,
        family=question.family,
        operation=question.operation,
        attribute=question.attribute,
    )


def checked_weights(families: Sequence[str] | None, weights: Mapping[str, float] | None) -> dict[str, float]:
    """The families' weights, or a DataError that names the unknown family and the nearest known one."""
    for family in (*(families or ()), *(weights or ())):
        if family not in FAMILIES:
            near = difflib.get_close_matches(family, FAMILIES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FAMILIES)}"
            raise DataError(f"unknown factbook question family {family!r}: {hint}")
    mix = {family: (weights or WEIGHTS).get(family, 0.0) for family in (families or FAMILIES)}
    if not any(weight > 0 for weight in mix.values()):
        raise DataError(f"no factbook question family has a weight above zero: {mix}")
    return mix
