"""The benchmark of search: its passages are real and the same every time, and its figures are those of what it ran."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from arpo.bench import tools_search
from arpo.bench.tools_passages import made_passages, material
from arpo.bench.tools_search import measure
from arpo.errors import ArpoError
from arpo.tools.search import words

CACHE = {
    "search query: height of C++ towers": "Page 1: The tower is 5 m high.\nPage 2: ...\nPage 3: Another tower.",
    "who was it": "Page 1: The tower is 5 m high.",
    "k" * 400: "Page 1: a transcript",
}


@pytest.fixture
def cache(tmp_path) -> Path:
    path = tmp_path / "search_cache.json"
    path.write_text(json.dumps(CACHE))
    return path


def test_texts_and_queries_of_a_cache(cache):
    stuff = material(cache, 50)
    assert set(stuff.queries) == {"height of C++ towers", "who was it"}
    texts = [doc.text for doc in stuff.passages if doc.id.startswith("cache-")]
    assert texts == ["The tower is 5 m high.", "Another tower.", "a transcript"]
    assert stuff.cached
    assert len(stuff.passages) > 6000


def test_without_a_cache_the_factbook_is_asked(tmp_path):
    stuff = material(tmp_path / "nowhere.json", 5, seed=1)
    assert (len(stuff.queries), stuff.cached) == (5, False)
    assert stuff.queries == material(None, 5, seed=1).queries != material(None, 5, seed=2).queries


def test_passages_are_the_same_every_time_and_no_two_are_equal():
    real = material(None, 1).passages[:50]
    docs = list(made_passages(real, 300, seed=3))
    assert docs == list(made_passages(real, 300, seed=3))
    assert docs != list(made_passages(real, 300, seed=4))
    assert docs[:50] == real
    assert len({doc.id for doc in docs}) == len({doc.text for doc in docs}) == 300
    lengths = [len(words(doc.text)) for doc in docs[50:]]
    assert 80 < sum(lengths) / len(lengths) < 250
    assert list(made_passages(real, 20)) == real[:20]


def test_figures_of_a_small_run():
    told = []
    [row] = measure(passages=400, queries=20, kinds=("bm25s",), processes=2, cache=None, say=told.append)
    assert (row.kind, row.passages, row.queries, row.processes) == ("bm25s", 400, 20, 2)
    figures = {name: value for name, value in asdict(row).items() if isinstance(value, float)}
    assert all(value >= 0 for value in figures.values()), figures
    assert row.p50_ms <= row.p95_ms
    assert row.megabytes_index > 0.03
    assert told == ["search: writing 400 passages", "search: bm25s"]


def test_what_goes_wrong_in_a_process_is_told(monkeypatch):
    one = material(None, 1).passages[0]
    monkeypatch.setattr(tools_search, "made_passages", lambda *_: [one, one])
    with pytest.raises(ArpoError, match="two documents have the id"):
        measure(passages=2, queries=2, kinds=("bm25s",), cache=None)
