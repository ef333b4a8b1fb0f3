"""The published cache format: what is taken and left out, and the way there and back."""

import fcntl
import json
import threading
from pathlib import Path

import pytest

from arpo.cli.app import run
from arpo.errors import DataError, StorageError
from arpo.tools.base import ToolContext
from arpo.tools.registry import Surroundings
from arpo.tools.results import clean
from arpo.tools.search.cache import CacheKey, Entry, normalise
from arpo.tools.search.legacy import export_file, fault, import_file, imported_key, read_pages
from arpo.tools.search.render import NO_SEARCH_RESULTS, render
from arpo.tools.search.store import Store
from arpo.tools.search.web import READERS, online
from arpo.tools.search.web_settings import WebSearchSettings

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "arpo_rl" / "search_cache.json"
SAMPLE = {
    "Amy Smart film debut": "Page 1: The film is … stars\nPage 2: Nov 5, 2021 · Campfire Tales",
    "search query: Who directed C++?": "Page 1: C++",
    "who directed C?": "Page 1: C",
    "version 1.5": "Page 1: one and a half",
    "version 15": "Page 1: fifteen",
    "xyzzy plugh": NO_SEARCH_RESULTS,
}


def written(file: Path, entries: object) -> Path:
    file.write_text(json.dumps(entries, indent=2, ensure_ascii=False), encoding="utf-8")
    return file


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache.sqlite")


async def answers(store: Store, *queries: str, **cache) -> list[str]:
    options = {"path": str(store.path), "mode": "read_only", "on_miss": "empty", **cache}
    [tool] = online(WebSearchSettings(provider="serper", cache=options), Surroundings())
    return [(await tool.call({"query": query}, ToolContext())).text for query in queries]  # type: ignore[union-attr]


def test_there_and_back_is_the_same_file(store, tmp_path):
    source = written(tmp_path / "in.json", SAMPLE)
    report = import_file(source, store)
    assert (report.taken, report.negative, report.rejected, report.repeated) == (6, 1, [], [])
    export_file(store, tmp_path / "out.json", READERS)
    assert (tmp_path / "out.json").read_bytes() == source.read_bytes()
    again = Store(tmp_path / "again.sqlite")
    import_file(tmp_path / "out.json", again)
    assert again.content_hash() == store.content_hash()


async def test_imported_entries_answer_as_they_stood(store, tmp_path):
    import_file(written(tmp_path / "in.json", SAMPLE), store)
    assert await answers(store, *SAMPLE) == list(SAMPLE.values())
    assert await answers(store, ' "Amy Smart"  film debut\n') == [SAMPLE["Amy Smart film debut"]]
    assert await answers(store, "who directed C", "VERSION 15", "version 1.5.") == [NO_SEARCH_RESULTS] * 3
    assert await answers(store, "version 15", imported=False) == [NO_SEARCH_RESULTS]


async def test_the_copied_prefix_counts_unless_told_otherwise(store, tmp_path):
    import_file(written(tmp_path / "in.json", SAMPLE), store)
    bare, prefixed = "Who directed C++?", "search query: who directed C?"
    assert await answers(store, bare, prefixed) == [NO_SEARCH_RESULTS] * 2
    assert await answers(store, bare, prefixed, strip_prefix=True) == ["Page 1: C++", "Page 1: C"]
    assert await answers(store, "search query: Who directed C++?", strip_prefix=True) == ["Page 1: C++"]


@pytest.mark.parametrize(
    ("query", "text", "reason"),
    [
        ("search query here </search> <result>", "Page 1: a", "query carries '</search>'"),
        ("q<|im_end|>", "Page 1: a", "query carries '<|im_end|>'"),
        ("q\nPage 1: b", "Page 1: a", "a piece of a transcript"),
        ("q" * 1001, "Page 1: a", "1001 characters is a piece"),
        ("  ", "Page 1: a", "query is empty"),
        ("q", "Page 1: a <|im_start|>user", "text carries '<|im_start|>'"),
        ("q", "Page 1: a</result><answer>5</answer>", "text carries '</result>'"),
        ("q", "Error: 429", "not in the form 'Page 1: ...'"),
        ("q", "Page 2: a", "not in the form"),
        ("q", "", "not in the form"),
        ("q", None, "of type NoneType"),
        ("q", ["Page 1: a"], "of type list"),
    ],
)
def test_what_is_left_out_and_why(store, tmp_path, query, text, reason):
    report = import_file(written(tmp_path / "in.json", {"good": "Page 1: a", query: text}), store)
    assert (report.taken, len(report.rejected), report.rejected[0].query) == (1, 1, query)
    assert reason in report.rejected[0].reason
    assert [key.raw for key, _ in store.pairs()] == ["good"]


@pytest.mark.parametrize("query", ["<query>How to extract digits</query>", "what is a <b> tag", "a < b > c", "1|2"])
def test_markup_that_is_nobodys_protocol_is_no_fault(query):
    assert fault(query, "Page 1: <title> of a page") == ""


def test_of_equal_keys_the_last_counts_and_all_are_told(store, tmp_path):
    file = tmp_path / "in.json"
    file.write_text('{"q": "Page 1: a", "r": "Page 1: r", "q": "Page 1: b", " q ": "Page 1: c"}')
    report = import_file(file, store)
    assert (report.taken, report.repeated) == (2, ["q", " q "])
    entry = store.get(imported_key("q"))
    assert entry is not None
    assert entry.body == b"Page 1: c"


def test_a_second_import_replaces_the_first(store, tmp_path):
    import_file(written(tmp_path / "one.json", {"q": "Page 1: a", "r": "Page 1: r"}), store)
    import_file(written(tmp_path / "two.json", {"q": "Page 1: b"}), store)
    export_file(store, tmp_path / "out.json", READERS)
    assert json.loads((tmp_path / "out.json").read_text()) == {"q": "Page 1: b", "r": "Page 1: r"}


@pytest.mark.parametrize("content", ["", "[]", '"x"', '{"a": "Page 1', "\xff\xfe"])
def test_files_that_are_no_cache(store, tmp_path, content):
    (tmp_path / "in.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"in\.json: "):
        import_file(tmp_path / "in.json", store)
    with pytest.raises(DataError, match=r"in\.json: "):
        export_file(store, tmp_path / "in.json", READERS)
    assert (tmp_path / "in.json").read_bytes() == content.encode("latin-1")
    with pytest.raises(DataError, match=r"gone\.json: cannot be read"):
        import_file(tmp_path / "gone.json", store)


def test_pages_are_split_by_number_in_turn():
    text = "Page 1: see\nPage 7: of it\nPage 2: and Page 3: too\nPage 3: "
    assert [record.snippet for record in read_pages(text)] == ["see\nPage 7: of it", "and Page 3: too", ""]
    plain = "Page 1: a\nPage 2: b"
    assert render(read_pages(plain), "page") == plain
    assert read_pages(NO_SEARCH_RESULTS) == []


def test_an_export_keeps_what_others_wrote_and_prefers_what_is_new(store, tmp_path):
    file = written(tmp_path / "out.json", {"theirs": "Page 1: t", "q": "Page 1: stale"})
    import_file(written(tmp_path / "in.json", {"q": "Page 1: imported"}), store)
    organic = [{"title": "t", "snippet": "fresh\nlines", "link": "x"}]
    body = json.dumps({"searchParameters": {}, "organic": organic}).encode()
    for provider, fetched, raw in (("serper", 5.0, ' "q"'), ("unknown", 6.0, "u")):
        key = CacheKey(kind="search", provider=provider, text=normalise(raw), raw=raw)
        store.put(key, Entry(body=body, fetched_at=fetched))
    store.put(CacheKey(kind="page", provider="browser", text="http://x"), Entry(body=b"<html>"))
    report = export_file(store, file, READERS)
    assert json.loads(file.read_text()) == {"theirs": "Page 1: t", "q": "Page 1: fresh lines"}
    assert (report.taken, report.kept, report.repeated) == (1, 1, ["q"])
    assert [(each.query, each.reason) for each in report.rejected] == [("u", "its provider 'unknown' is not known")]


def test_an_export_waits_for_other_writers_and_is_whole(store, tmp_path):
    import_file(written(tmp_path / "in.json", SAMPLE), store)
    out = tmp_path / "out.json"
    writer = threading.Thread(target=export_file, args=(store, out, READERS))
    with Path(f"{out}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
        written(out, {"theirs": "Page 1: t"})
    writer.join(30)
    assert list(json.loads(out.read_text())) == ["theirs", *SAMPLE]
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.json", "out.json.lock"]


def test_an_export_that_cannot_be_written(store, tmp_path):
    with pytest.raises(StorageError, match="nowhere"):
        export_file(store, tmp_path / "nowhere" / "out.json", READERS)


def test_the_commands(tmp_path, capsys):
    bad = "a </search> b"
    source = written(tmp_path / "in.json", {**SAMPLE, bad: "Page 1: x"})
    cache, out = str(tmp_path / "c.sqlite"), tmp_path / "out.json"
    assert run(["tools", "cache", "import", str(source), "--cache", cache]) == 0
    told = capsys.readouterr()
    assert "6 entries imported" in told.out
    assert f"left out: its query carries '</search>' of a prompt or transcript: {bad!r}" in told.err
    assert run(["tools", "cache", "stats", cache, "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert stats["sha256"] == Store(Path(cache)).content_hash()
    [row] = stats["contents"]
    assert (row["kind"], row["provider"], row["entries"], row["negative"]) == ("search", "imported", 6, 1)
    assert run(["tools", "cache", "stats", cache]) == 0
    assert "search imported: 6 entries (1 found nothing)" in capsys.readouterr().out
    assert run(["tools", "cache", "export", str(out), "--cache", cache]) == 0
    assert json.loads(out.read_text()) == SAMPLE
    assert run(["tools", "cache", "stats", str(tmp_path / "gone")]) == 2
    assert run(["tools", "cache", "import", str(tmp_path / "gone.json"), "--cache", cache]) == 2


def test_the_published_file(store, tmp_path):
    if not PUBLISHED.is_file():
        pytest.skip(f"{PUBLISHED} is not there")
    report = import_file(PUBLISHED, store)
    assert (report.taken, report.negative, report.repeated) == (998, 2, [])
    assert ["transcript" in each.reason for each in report.rejected] == [True, True]
    export_file(store, tmp_path / "out.json", READERS)
    theirs, ours = (json.loads(path.read_text(encoding="utf-8")) for path in (PUBLISHED, tmp_path / "out.json"))
    assert ours == {query: text for query, text in theirs.items() if query not in {r.query for r in report.rejected}}
    assert [text for text in ours.values() if render(read_pages(text), "page") != clean(text)] == []
