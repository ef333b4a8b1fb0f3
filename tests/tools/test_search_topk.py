"""The index against the library bm25s: the same numbers on disk, and the same answers as scoring everything."""

import random

import bm25s
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arpo.tools.search import Document, SearchIndex, topk, words
from arpo.tools.search import postings as postings_module
from arpo.tools.search.audit import audit
from arpo.tools.search.postings import PostingsWriter
from arpo.tools.search.tokens import document_words

ARRAYS = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy")


def corpus(seed: int, count: int, vocabulary: int = 60) -> list[Document]:
    """Words by a steep distribution, so that some are in nearly all documents; with copies, so that there are ties."""
    rng = random.Random(seed)
    names = [f"w{number}" for number in range(vocabulary)]
    weights = [1 / (number + 1) for number in range(vocabulary)]
    texts = [" ".join(rng.choices(names, weights, k=rng.randrange(1, 25))) for _ in range(count)]
    copies = [rng.choice(texts) for _ in range(count // 4)]
    ids = rng.sample(range(10**6), count + len(copies))
    return [Document(f"d{name:06d}", "", text) for name, text in zip(ids, texts + copies, strict=True)]


def reference(docs: list[Document]) -> tuple[bm25s.BM25, list[str]]:
    """bm25s's own index of the same words, over the documents by id."""
    ordered = sorted(docs, key=lambda doc: doc.id)
    tokens = [document_words(f"{doc.title} {doc.text}") for doc in ordered]
    vocabulary = {word: place for place, word in enumerate(sorted({word for row in tokens for word in row} | {""}))}
    model = bm25s.BM25()
    model.index(([[vocabulary[word] for word in row] for row in tokens], vocabulary), show_progress=False)
    return model, [doc.id for doc in ordered]


def exhaustive(model: bm25s.BM25, names: list[str], query: str, k: int) -> list[tuple[str, float]]:
    ids = sorted(model.vocab_dict[word] for word in words(query) if word in model.vocab_dict)
    if not ids:
        return []
    scores_D = model.get_scores_from_ids(ids)
    order = sorted(np.flatnonzero(scores_D > 0), key=lambda at: (-scores_D[at], at))[:k]
    return [(names[at], float(scores_D[at])) for at in order]


def found(index: SearchIndex, query: str, k: int) -> list[tuple[str, float]]:
    return [(hit.document.id, hit.score) for hit in index.query(query, k)]


def test_the_arrays_are_those_of_bm25s(tmp_path):
    docs = corpus(0, 200)
    index = SearchIndex.build(docs, tmp_path / "index")
    model, _ = reference(docs)
    model.save(tmp_path / "theirs", show_progress=False)
    for name in ARRAYS:
        assert (index.folder / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    loaded = bm25s.BM25.load(index.folder, mmap=True, load_vocab=False, show_progress=False)
    assert (loaded.k1, loaded.b, loaded.method, loaded.scores["num_docs"]) == (1.5, 0.75, "lucene", len(docs))


def test_blocks_on_disk_change_nothing(tmp_path):
    docs = corpus(1, 40)
    ranks = np.random.default_rng(0).permutation(len(docs)).astype(np.int32)
    for name, block in (("whole", 10**6), ("blocks", 100), ("tiny", 20)):
        (tmp_path / name).mkdir()
        writer = PostingsWriter(tmp_path / name, block)
        for doc in docs:
            writer.add(document_words(doc.text))
        writer.finish(ranks)
    for file in (tmp_path / "whole").iterdir():
        for name in ("blocks", "tiny"):
            assert (tmp_path / name / file.name).read_bytes() == file.read_bytes(), file.name
    assert sorted(p.name for p in (tmp_path / "tiny").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )


@pytest.mark.parametrize("long", [1, 20, 10**9])
def test_the_best_are_those_of_scoring_everything(tmp_path, monkeypatch, long):
    monkeypatch.setattr(topk, "_LONG", long)  # columns of this length may be left out
    docs = corpus(2, 600)
    index = SearchIndex.build(docs, tmp_path / "index")
    model, names = reference(docs)
    rng = random.Random(long)
    for _ in range(60):
        query = " ".join(f"w{int(rng.paretovariate(0.6)) % 70}" for _ in range(rng.randrange(1, 14)))
        k = rng.choice((1, 2, 10, 1000))
        assert found(index, query, k) == exhaustive(model, names, query, k), (query, k)


def test_long_columns_are_left_out(tmp_path, monkeypatch):
    """Otherwise the test above would pass whatever the bounds are."""
    monkeypatch.setattr(topk, "_LONG", 1)
    index = SearchIndex.build(corpus(3, 600), tmp_path / "index")
    asked = []
    added = topk._added
    monkeypatch.setattr(topk, "_added", lambda *args: asked.append(len(args[2].documents)) or added(*args))
    index.query("w0 w1 w55 w57", 2)
    lengths = [len(index._scorer._column(word, 1).documents) for word in index.ids("w0 w1 w55 w57")]
    assert max(asked) < max(lengths)
    assert len(asked) < len(lengths)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(st.sampled_from("abcdef"), max_size=6).map(" ".join), min_size=1, max_size=12),
    query=st.lists(st.sampled_from("abcdefg"), max_size=6).map(" ".join),
    k=st.integers(1, 5),
)
def test_any_small_corpus(tmp_path, texts, query, k):
    docs = [Document(f"{number:02d}", "", text) for number, text in enumerate(texts)]
    if not any(texts):
        return  # bm25s divides by the mean length
    index = SearchIndex.build(docs, tmp_path / "index")
    model, names = reference(docs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "_LONG", 1)
        assert found(index, query, k) == exhaustive(model, names, query, k)


def test_documents_without_words_are_never_found(tmp_path):
    index = SearchIndex.build([Document("1", "", "?!"), Document("2", "", "...")], tmp_path / "index")
    assert (len(index), index.query("? a", 3)) == (2, [])


def test_a_query_leaves_nothing_behind(tmp_path):
    docs = corpus(4, 300)
    index = SearchIndex.build(docs, tmp_path / "index")
    first = found(index, "w3 w4 w9", 10)
    for query in ("w1 w2", "w5", "w0 w1 w2 w3", "nothing"):
        index.query(query, 3)
    assert found(index, "w3 w4 w9", 10) == first
    assert all(not idle.any() for idle in index._scorer._idle)


def test_audit_holds_searches_against_bm25s(tmp_path, monkeypatch):
    index = SearchIndex.build(corpus(5, 400), tmp_path / "index")
    assert audit(index.folder)[1] == 32
    monkeypatch.setattr(topk, "_fit", lambda documents, values, *_: (documents[:1], values[:1]))
    with pytest.raises(Exception, match="finds other documents than bm25s"):
        audit(index.folder)


def test_columns_are_written_range_by_range():
    starts = np.array([0, 3, 3, 10, 11, 12])
    ranges = list(postings_module._ranges(starts, 4))
    assert ranges == [(0, 2), (2, 3), (3, 5)], "a column longer than the range comes alone, empty ones ride along"


def test_thousands_of_words_asked_at_once(tmp_path):
    docs = corpus(6, 50)
    index = SearchIndex.build(docs, tmp_path / "index")
    query = " ".join(f"w{number % 60}" for number in range(3000))
    assert found(index, query, 3) == exhaustive(*reference(docs), query, 3)
