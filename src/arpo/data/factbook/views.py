"""How the facts look in a text: as they are, or with countries renamed and digits randomised.

A small model that only ever sees the real countries learns them by heart. In demonstrations with invented names and
numbers the only way to the answer is to copy it from the search results, which is the skill that carries over to
countries it has never seen. A view is consistent: within one demonstration a country has one name, a fact one value.
"""

import random

from arpo.data.factbook.attributes import BY_KEY, CAPITAL
from arpo.data.factbook.facts import Fact, Facts

_ONSETS = (*"bcdfghjklmnprstvz", "br", "tr", "st", "gr", "ch", "sh", "")
_RIMES = (*"aeiou", "an", "en", "in", "on", "ar", "er", "al", "ia", "ou", "as", "or")
_SYLLABLES = [onset + rime for onset in _ONSETS for rime in _RIMES]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def invented_name(rng: random.Random) -> str:
    """A name of one or two pronounceable words."""
    word = lambda: "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((1, 2, 2, 3)))).capitalize()
    return " ".join(word() for _ in range(rng.choice((1, 1, 1, 2))))


def random_digits(rng: random.Random, text: str) -> str:
    """The same shape with other digits; a leading digit is never zero unless it was."""
    shuffled, leading = [], True
    for char in text:
        if not char.isdigit():
            shuffled.append(char)
            continue
        shuffled.append("0" if leading and char == "0" else str(rng.randint(1 if leading else 0, 9)))
        leading = False
    return "".join(shuffled)


class View:
    """The facts as they are."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def name(self, country: str) -> str:
        return country

    def fact(self, fact: Fact) -> Fact:
        return fact

    def value(self, country: str, attribute: str) -> str:
        return self.fact(self.facts.countries[country].facts[attribute]).value


class InventedView(View):
    """Every country renamed, every number given other digits; drawn on first sight and then kept."""

    def __init__(self, facts: Facts, rng: random.Random) -> None:
        super().__init__(facts)
        self._rng = rng
        self._names: dict[str, str] = {}
        self._facts: dict[str, Fact] = {}

    def name(self, country: str) -> str:
        while country not in self._names:
            name = invented_name(self._rng)
            if name not in self._names.values():
                self._names[country] = name
        return self._names[country]

    def fact(self, fact: Fact) -> Fact:
        if fact.id not in self._facts:
            self._facts[fact.id] = self._invent(fact)
        return self._facts[fact.id]

    def _invent(self, fact: Fact) -> Fact:
        name, attribute = self.name(fact.country), BY_KEY[fact.attribute]
        if attribute.kind == "number":
            text = random_digits(self._rng, fact.text.removesuffix(attribute.unit)) + attribute.unit
            number = text.removesuffix(attribute.unit).strip().replace(",", "")
            return Fact(name, fact.attribute, text, number)
        value = self._invent_name(fact)
        return Fact(name, fact.attribute, value, value)

    def _invent_name(self, fact: Fact) -> str:
        if fact.attribute == CAPITAL:
            return invented_name(self._rng)
        if fact.attribute == "internet code":
            return f".{self._rng.choice(_LETTERS)}{self._rng.choice(_LETTERS)}"
        return ", ".join(self.name(other) for other in fact.text.split(", "))
