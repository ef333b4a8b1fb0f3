"""The index: what it finds, in which order, and what it says of damage."""

import json
import os
from pathlib import Path

import pytest

from arpo.errors import DataError
from arpo.seeds import derive
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.search import Document, LocalSource, SearchIndex, SearchTool, open_corpus, words

DOCS = [
    Document("c", "Chad", "capital: N'Djamena"),
    Document("a", "Austria", "capital: Vienna"),
    Document("b", "Belize", "capital: Belmopan"),
    Document("d", "Austria", "area: 83,871 sq km"),
]


@pytest.fixture
def index(tmp_path: Path) -> SearchIndex:
    return SearchIndex.build(DOCS, tmp_path / "index")


def ids(index: SearchIndex, query: str, k: int = 10) -> list[str]:
    return [hit.document.id for hit in index.query(query, k)]


def test_words_are_normalised():
    assert words("Ｃａｆé_1,234 N'Djamena ①") == ["café", "1", "234", "n", "djamena", "1"]


def test_best_document_first(index):
    assert ids(index, "capital of Austria")[0] == "a"
    assert index.query("VIENNA", 1)[0].document == DOCS[1]


def test_equal_scores_fall_back_on_the_id_and_k_cuts(index):
    hits = index.query("capital", 10)
    assert {hit.document.id for hit in hits} == {"a", "b", "c"}
    assert [hit.document.id for hit in hits if hit.score == hits[0].score] == ["a", "b"]
    assert ids(index, "capital", 1) == ["a"]


def test_order_of_words_and_of_documents_changes_nothing(index, tmp_path):
    again = SearchIndex.build(reversed(DOCS), tmp_path / "again")
    for query in ("Austria capital area", "area capital Austria"):
        assert again.query(query, 4) == index.query("Austria capital area", 4)


def test_index_bytes_do_not_depend_on_the_order(index, tmp_path):
    SearchIndex.build(reversed(DOCS), tmp_path / "again")
    same = [(tmp_path / name / "manifest.json").read_text() for name in ("index", "again")]
    assert same[0] == same[1]


def test_only_documents_that_share_a_word_are_found(index):
    assert ids(index, "zebra") == []
    assert ids(index, "?!") == []
    assert ids(index, "vienna zebra") == ["a"]


def test_a_folder_is_replaced_whole(index, tmp_path):
    SearchIndex.build(DOCS[:1], tmp_path / "index")
    assert len(SearchIndex.open(tmp_path / "index")) == 1
    assert sorted(os.listdir(tmp_path)) == ["index"]


def test_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match="two documents have the id 'a'"):
        SearchIndex.build([DOCS[1], DOCS[1]], tmp_path / "index")
    with pytest.raises(DataError, match="without documents"):
        SearchIndex.build([], tmp_path / "index")
    assert os.listdir(tmp_path) == []


def test_missing_index(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no search index here.*build the index again"):
        SearchIndex.open(tmp_path / "nowhere")


def _files(index: SearchIndex) -> list[str]:
    return sorted(json.loads((index.folder / "manifest.json").read_text())["files"])


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_every_damaged_file_is_named(index, damage):
    for name in _files(index):
        path = index.folder / name
        whole = path.read_bytes()
        if damage == "truncate":
            path.write_bytes(whole[:-1])
        elif damage == "flip":
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        else:
            path.unlink()
        with pytest.raises(DataError, match=rf"{name}.*build the index again"):
            SearchIndex.open(index.folder)
        path.write_bytes(whole)
    assert len(SearchIndex.open(index.folder)) == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 99, "files": {}}'])
def test_damaged_manifest(index, text):
    (index.folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="build the index again"):
        SearchIndex.open(index.folder)


def _corpus(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_corpus_from_jsonl_both_row_forms(tmp_path):
    path = _corpus(
        tmp_path / "c.jsonl",
        '{"id": 7, "title": "Chad", "text": "capital: N\'Djamena"}',
        "",
        '{"id": "w", "contents": "\\"Vienna\\"\\nA city\\non the Danube"}',
        '{"contents": "no title here"}',
    )
    index = open_corpus(path)
    assert index.query("chad", 1)[0].document == Document("7", "Chad", "capital: N'Djamena")
    assert index.query("danube", 1)[0].document.line == "Vienna | A city on the Danube"
    assert index.query("title", 1)[0].document == Document("000000004", "", "no title here")


def test_the_index_of_a_corpus_is_reused_and_follows_the_file(tmp_path):
    path = _corpus(tmp_path / "c.jsonl", '{"id": "1", "text": "old words"}')
    open_corpus(path)
    stamp = (tmp_path / "c.jsonl.index" / "manifest.json").stat().st_mtime_ns
    open_corpus(path)
    assert (tmp_path / "c.jsonl.index" / "manifest.json").stat().st_mtime_ns == stamp
    _corpus(path, '{"id": "1", "text": "new words"}')
    assert ids(open_corpus(path), "old") == []
    assert ids(open_corpus(path), "new") == ["1"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"id": "2", "text": "cut sho', "not JSON"),
        ('{"id": "2"}', "needs a string under 'text' or 'contents'"),
        ('{"id": "2", "text": 5}', "needs a string"),
        ("[1]", "needs a string"),
        ('{"id": "2", "text": " -- "}', "no words"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, problem):
    path = _corpus(tmp_path / "c.jsonl", '{"id": "1", "text": "fine"}', row)
    with pytest.raises(DataError, match=rf"c\.jsonl, row 2: {problem}"):
        open_corpus(path)


def test_missing_corpus(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jsonl: no such corpus"):
        open_corpus(tmp_path / "gone.jsonl")


async def test_result_text(index):
    tool = SearchTool(LocalSource(index), top_k=2)
    result = await tool.call({"query": "Austria capital"}, ToolContext())
    assert result.text == "Austria | capital: Vienna ; Austria | area: 83,871 sq km"
    assert result.data["ids"] == ["a", "d"]
    nothing = await tool.call({"query": "zebra"}, ToolContext())
    assert (nothing.status, nothing.text) == (ToolStatus.OK, "no results")


async def test_shuffle_is_a_function_of_the_query(index):
    source = LocalSource(index)
    plain, shuffled = SearchTool(source, top_k=3), SearchTool(source, top_k=3, shuffle=True)
    moved = 0
    for query in ("capital", "capital capital", "the capital", "a capital", "capital?"):
        expected = (await plain.call({"query": query}, ToolContext())).data["ids"]
        got = (await shuffled.call({"query": query}, ToolContext())).data["ids"]
        assert got == sorted(expected, key=lambda doc, q=query: derive("search order", q, doc))
        moved += got != expected
    assert moved > 0
