"""Index folders: what opening notices and what the full check does, formats, and several processes."""

import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from arpo.data.factbook.corpus import documents, ensure_index
from arpo.data.factbook.facts import load_facts
from arpo.errors import DataError
from arpo.tools.search import Document, SearchIndex, open_corpus, open_index
from arpo.tools.search import folder as folder_module
from arpo.tools.search.folder import FORMAT, fingerprint

LARGE = [Document(f"{number:05d}", f"Title {number}", f"word{number % 97} " + "x" * 100) for number in range(4000)]


def rewrite(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    return SearchIndex.build(LARGE, tmp_path_factory.mktemp("large") / "index").folder


def test_opening_a_large_file_reads_samples_and_the_full_check_everything(large):
    path = large / "docs.jsonl"
    size = path.stat().st_size
    assert size > 4 * 32 * 4096
    between = (size - 4096) // 31 + 4096 + 10  # just behind the second block
    rewrite(path, between)
    try:
        assert len(SearchIndex.open(large)) == len(LARGE)
        with pytest.raises(DataError, match=r"docs\.jsonl: content differs from what was built"):
            SearchIndex.open(large, full=True)
    finally:
        rewrite(path, between)
    assert len(open_index(large, full=True)) == len(LARGE)


@pytest.mark.parametrize("damage", ["zeroed tail", "zeroed half", "last byte", "first byte", "cut", "another file"])
def test_opening_notices_what_happens_to_whole_files(large, damage):
    path = large / "docs.jsonl"
    whole = path.read_bytes()
    size = len(whole)
    damaged = {
        "zeroed tail": whole[: size - 5000] + bytes(5000),
        "zeroed half": whole[: size // 2] + bytes(size - size // 2),
        "last byte": whole[:-1] + b"?",
        "first byte": b"?" + whole[1:],
        "cut": whole[:-100],
        "another file": hashlib.sha256(whole).digest() * (size // 32) + whole[: size % 32],
    }[damage]
    path.write_bytes(damaged)
    try:
        with pytest.raises(DataError, match=r"docs\.jsonl.*build the index again"):
            SearchIndex.open(large)
    finally:
        path.write_bytes(whole)
    assert len(SearchIndex.open(large)) == len(LARGE)


def test_a_copy_is_as_good_as_the_index(large, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in large.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert open_index(copy).query("word5", 3) == open_index(large).query("word5", 3)


def as_format(folder: Path, number: int) -> None:
    facts = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**facts, "format": number}))


def test_another_format_is_refused_with_the_remedy_and_rebuilt_where_it_is_ours(tmp_path):
    folder = SearchIndex.build(LARGE[:3], tmp_path / "index").folder
    as_format(folder, 1)
    with pytest.raises(DataError, match=rf"format 1, not {FORMAT}; build the index again .*arpo index build CORPUS"):
        open_corpus(folder)
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "text": "some words"}\n')
    open_corpus(corpus)
    as_format(tmp_path / "c.jsonl.index", 1)
    assert len(open_corpus(corpus).query("words", 1)) == 1


def test_files_that_are_no_index_are_never_thrown_away(tmp_path):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("papers", "file"):
        with pytest.raises(DataError, match=f"{name}: there already, and no search index"):
            SearchIndex.build(LARGE[:2], tmp_path / name)
    assert (tmp_path / "papers" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert len(SearchIndex.build(LARGE[:2], tmp_path / "empty")) == 2


def test_a_kind_that_the_settings_do_not_ask_for(large):
    with pytest.raises(DataError, match=r'an index of the kind "bm25s", but tools\.search\.index asks for "tantivy"'):
        open_corpus(large, "tantivy")
    facts = json.loads((large / "manifest.json").read_text())
    assert facts["kind"] == "bm25s"


def _open_in_a_process(corpus: Path, start, answers) -> None:
    start.wait()
    index = open_corpus(corpus)
    answers.put((len(index), (corpus.with_name("c.jsonl.index") / "manifest.json").stat().st_ino))


def test_several_processes_that_need_an_index_at_once_build_it_once(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"id": doc.id, "text": doc.text}) + "\n" for doc in LARGE[:500]))
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_open_in_a_process, args=(corpus, start, answers)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert {count for count, _ in got} == {500}
    assert len({inode for _, inode in got}) == 1, "each found the same index"
    assert sorted(os.listdir(tmp_path)) == ["c.jsonl", "c.jsonl.index"]


def test_an_index_that_is_replaced_goes_on_answering_who_has_it_open(tmp_path):
    index = SearchIndex.build(LARGE[:10], tmp_path / "index")
    SearchIndex.build(LARGE[20:22], tmp_path / "index")
    assert len(index) == 10
    assert index.query("word3", 1)[0].document == LARGE[3]


def test_pages_are_mapped_not_read(large):
    index = SearchIndex.open(large)
    index.query("word5", 3)
    maps = Path("/proc/self/maps").read_text()
    mapped = {name for name in os.listdir(large) if str(large / name) in maps}
    assert mapped >= {"docs.jsonl", "data.csc.index.npy", "indices.csc.index.npy", "words.bin"}
    assert len(index) == len(LARGE)


def test_fingerprints_of_corpora(tmp_path, monkeypatch):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"a" * 200_000)
    assert fingerprint(path) == hashlib.sha256(b"a" * 200_000).hexdigest()
    monkeypatch.setattr(folder_module, "_WHOLE", 1000)
    first = fingerprint(path)
    os.utime(path, ns=(1, 1))
    assert fingerprint(path) != first, "a large file that was written again"
    second = fingerprint(path)
    path.write_bytes(b"a" * 199_999 + b"b")
    os.utime(path, ns=(1, 1))
    assert fingerprint(path) != second, "its end differs"


def test_what_the_factbook_answers_never_changes(tmp_path):
    """The packaged demonstrations and the pocket policy were made with these answers, scores included."""
    index = ensure_index(tmp_path / "factbook")
    assert len(index) == len(list(documents()))
    told = hashlib.sha256()
    for fact in list(load_facts())[::23]:
        for query in (f"{fact.country} {fact.attribute}", f"the {fact.attribute} of the {fact.country}", fact.text):
            told.update(json.dumps([(hit.document.id, hit.score.hex()) for hit in index.query(query, 5)]).encode())
    assert told.hexdigest() == "f4a60095727a302be8844b93926de80d480c158cc4ce8f7d4938da6c65be35ef"
