"""The tantivy kind of index behind the same interface."""

import sys

import pytest

from arpo.errors import ConfigError, DataError
from arpo.tools.search import Document, SearchIndex, build_index, open_corpus, open_index

pytest.importorskip("tantivy")
from arpo.tools.search import tantivy_index
from arpo.tools.search.tantivy_index import TantivyIndex

DOCS = [
    Document("c", "Chad", "capital: N'Djamena"),
    Document("a", "Austria", "capital: Vienna"),
    Document("b", "Belize", "capital: Belmopan"),
    Document("d", "Austria", "area: 83,871 sq km"),
    Document("j", "日本", "東京都は日本の首都"),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> TantivyIndex:
    return TantivyIndex.build(DOCS, tmp_path_factory.mktemp("tantivy") / "index")


def ids(index, query: str, k: int = 10) -> list[str]:
    return [hit.document.id for hit in index.query(query, k)]


@pytest.mark.parametrize(
    "query", ["capital", "VIENNA area", "capital zebra", "東京", "京", "日本の", "?!", "zebra", ""]
)
def test_both_kinds_find_the_same_documents(index, tmp_path, query):
    other = SearchIndex.build(DOCS, tmp_path / "bm25s")
    assert sorted(ids(index, query)) == sorted(ids(other, query))


def test_documents_come_back_whole(index):
    assert len(index) == len(DOCS)
    assert index.query("首都", 1)[0].document == DOCS[4]
    assert index.query("vienna", 1)[0].score > 0


def test_ties_fall_back_on_the_id_whatever_the_order_of_the_corpus(tmp_path):
    docs = [
        Document(f"{number * 7919 % 1000:04d}", "", f"same words{' here' * (number % 2)}") for number in range(1000)
    ]
    one = TantivyIndex.build(docs, tmp_path / "one")
    other = TantivyIndex.build(reversed(docs), tmp_path / "other")
    even = sorted(doc.id for doc in docs if "here" not in doc.text)
    odd = sorted(doc.id for doc in docs if "here" in doc.text)
    for k in (1, 3, 500):
        assert ids(one, "same words", k) == ids(other, "same words", k) == even[:k]
    assert ids(one, "here same", 600) == ids(other, "here same", 600) == (odd + even)[:600]
    assert one.query("same", 700) == other.query("same", 700)


@pytest.mark.parametrize(
    "query",
    [
        'capital" OR words:* AND NOT (vienna',
        "+capital -vienna",
        "row:Austria",
        "capital~2 vien*",
        "/.*/",
        "[a TO z]",
        "{",
        "\\",
        "capital^100",
        "title:IN [a b]",
    ],
)
def test_nothing_that_a_policy_writes_is_an_operator(index, tmp_path, query):
    other = SearchIndex.build(DOCS, tmp_path / "bm25s")
    assert sorted(ids(index, query)) == sorted(ids(other, query))


def test_repeated_words_weigh_more(index):
    once = {hit.document.id: hit.score for hit in index.query("capital vienna", 5)}
    twice = {hit.document.id: hit.score for hit in index.query("capital vienna vienna", 5)}
    assert twice["a"] > once["a"]
    assert twice["c"] == once["c"]


def test_bad_corpora(tmp_path):
    with pytest.raises(DataError, match="documents 1 and 3 of the corpus have the same id"):
        TantivyIndex.build([DOCS[0], DOCS[1], DOCS[0]], tmp_path / "index")
    with pytest.raises(DataError, match="without documents"):
        TantivyIndex.build([], tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_damage_is_noticed(tmp_path):
    folder = TantivyIndex.build(DOCS, tmp_path / "index").folder
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        if path.name == "manifest.json" or not whole:
            continue
        path.write_bytes(whole[:-1])
        with pytest.raises(DataError, match=rf"{path.name}.*build the index again"):
            open_index(folder)
        path.write_bytes(whole)
    assert isinstance(open_index(folder, full=True), TantivyIndex)


def test_a_corpus_file_in_either_kind(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "text": "some words"}\n')
    assert open_corpus(corpus, "tantivy").kind == "tantivy"
    assert open_corpus(corpus).kind == "bm25s"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "c.jsonl.index", "c.jsonl.tantivy"]
    assert open_corpus(tmp_path / "c.jsonl.tantivy").query("words", 1)[0].document.id == "1"


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tantivy", None)
    with pytest.raises(ConfigError, match=r"pip install 'arpo\[tantivy\]'"):
        build_index(DOCS, tmp_path / "index", "tantivy")
    assert tantivy_index.TantivyIndex.kind == "tantivy"
