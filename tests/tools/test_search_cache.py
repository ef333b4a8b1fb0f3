"""The cache: what is the same question, what is kept and for how long, one fetch at a time, and damage told by name."""

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from arpo.errors import DataError, StorageError
from arpo.tools.search.cache import Cache, CacheKey, CacheMiss, Entry, normalise
from arpo.tools.search.store import Store


def key(text: str = "q", **options) -> CacheKey:
    return CacheKey(kind="search", provider="p", text=text, **options)


class Upstream:
    """What is behind a cache: counts, takes its time, fails when told."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.calls = 0
        self.error: Exception | None = None
        self.negative = False

    async def __call__(self) -> Entry:
        self.calls += 1
        number = self.calls
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return Entry(body=f"answer {number}".encode(), negative=self.negative)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C++", "C"),
        ("1.5", "15"),
        ("Java", "java"),
        ("a b", "ab"),
        ('"a b"', "a b"),
        ("search query: a", "a"),
        ("①", "1"),
    ],
)
def test_different_queries_stay_different(one, other):
    assert key(normalise(one)).digest != key(normalise(other)).digest


@pytest.mark.parametrize(("one", "other"), [(" a \n b\t", "a b"), ("e\u0301", "é"), ("a\u3000b", "a b")])
def test_the_same_query_written_differently(one, other):
    assert normalise(one) == normalise(other)


def test_the_copied_prefix_is_stripped_only_when_asked():
    assert normalise("search query: C++") == "search query: C++"
    assert normalise("  Search query:  C++", strip_prefix=True) == "C++"
    assert normalise("my search query: C", strip_prefix=True) == "my search query: C"


def test_everything_but_the_raw_text_tells_keys_apart():
    plain = key()
    others = [
        CacheKey(kind="page", provider="p", text="q"),
        CacheKey(kind="search", provider="o", text="q"),
        key(params={"k": 1}),
        key(params={"k": "1"}),
        key(version=2),
    ]
    assert len({each.digest for each in (plain, *others)}) == 6
    assert key(raw=" q ").digest == plain.digest
    assert key(params={"a": 1, "b": [2]}).digest == key(params={"b": [2], "a": 1}).digest


async def test_fetched_once_and_kept_over_restarts(path):
    upstream = Upstream()
    cache = Cache(path)
    first, second = [await cache.through(key(), upstream) for _ in range(2)]
    assert (first[0], first[1], second[1]) == (second[0], False, True)
    cache.close()
    again = Cache(path)
    entry, hit = await again.through(key(), upstream)
    assert (entry.body, hit, upstream.calls) == (b"answer 1", True, 1)
    assert (again.stats.hits, again.stats.misses) == (1, 0)


async def test_failures_are_never_kept(path):
    upstream, cache = Upstream(), Cache(path)
    upstream.error = RuntimeError("down")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="down"):
            await cache.through(key(), upstream)
    upstream.error = None
    assert (await cache.through(key(), upstream))[0].body == b"answer 3"
    assert (cache.stats.failed, cache.stats.stored) == (2, 1)


async def test_time_limits_of_answers_and_of_nothing(path):
    upstream = Upstream()
    store = Store(path)
    now = time.time()
    for text, negative, age in [("old", False, 100), ("new", False, 10), ("gone", True, 10), ("undated", False, None)]:
        dated = None if age is None else now - age
        store.put(key(text), Entry(body=b"kept", negative=negative, fetched_at=dated))
    limited = Cache(path, ttl=50, negative_ttl=5)
    hits = {text: limited.peek(key(text)) is not None for text in ("old", "new", "gone", "undated")}
    assert hits == {"old": False, "new": True, "gone": False, "undated": False}
    assert (await limited.through(key("old"), upstream))[0].body == b"answer 1"
    assert limited.stats.expired == 1
    assert Cache(path).peek(key("undated")) is not None
    offline = Cache(path, "read_only", ttl=50, negative_ttl=5)
    assert all(offline.peek(key(text)) for text in ("old", "new", "gone", "undated"))


async def test_read_only_fetches_nothing_and_changes_nothing(path):
    upstream = Upstream()
    await Cache(path).through(key("there"), upstream)
    cache = Cache(path, "read_only")
    assert (await cache.through(key("there"), upstream))[1]
    with pytest.raises(CacheMiss, match=r"cache\.sqlite: no entry for the search 'As asked' of p.*read_only"):
        await cache.through(key("not there", raw="As asked"), upstream)
    assert (upstream.calls, cache.stats.misses) == (1, 1)
    with pytest.raises(StorageError, match="cannot be opened or written"):
        Store(path, readonly=True).put(key(), Entry(body=b""))
    with pytest.raises(DataError, match=r"nowhere: no such cache, and read_only"):
        Cache(path.with_name("nowhere"), "read_only")


def test_a_cache_in_a_folder_that_cannot_be_written(path, monkeypatch):
    store = Store(path)
    store.put(key(), Entry(body=b"kept"))
    store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    before = sorted(os.listdir(path.parent))
    opened = Store(path, readonly=True)
    entry = opened.get(key())
    assert entry is not None
    assert entry.body == b"kept"
    assert sorted(os.listdir(path.parent)) == before == ["cache.sqlite"]


async def test_refresh_fetches_once_more_and_then_reads(path):
    upstream = Upstream()
    await Cache(path).through(key(), upstream)
    cache = Cache(path, "refresh")
    answers = [(await cache.through(key(), upstream))[0].body for _ in range(2)]
    assert answers == [b"answer 2", b"answer 2"]
    assert (await Cache(path).through(key(), upstream))[0].body == b"answer 2"


async def test_off_keeps_nothing(path):
    upstream, cache = Upstream(), Cache(path, "off")
    assert [(await cache.through(key(), upstream))[1] for _ in range(2)] == [False, False]
    assert (upstream.calls, path.exists(), cache.content_hash()) == (2, False, "")


async def test_other_keys_may_answer(path):
    cache = Cache(path)
    Store(path).put(key("imported"), Entry(body=b"imported", fetched_at=None))
    assert (await cache.through(key("own"), Upstream(), also=[key("none"), key("imported")]))[0].body == b"imported"
    Store(path).put(key("own"), Entry(body=b"own"))
    assert (await cache.through(key("own"), Upstream(), also=[key("imported")]))[0].body == b"own"


async def test_many_coroutines_are_one_fetch(path):
    upstream, cache = Upstream(0.02), Cache(path)
    answers = await asyncio.gather(*(cache.through(key(), upstream) for _ in range(50)))
    assert {entry.body for entry, _ in answers} == {b"answer 1"}
    assert [hit for _, hit in answers] == [False] + [True] * 49
    assert (upstream.calls, cache.stats.misses, cache.stats.joined) == (1, 1, 49)
    other = Upstream(0.02)
    await asyncio.gather(*(cache.through(key(str(n)), other) for n in range(20)))
    assert other.calls == 20


async def test_those_who_wait_share_a_failure(path):
    upstream, cache = Upstream(0.02), Cache(path)
    upstream.error = RuntimeError("down")
    outcomes = await asyncio.gather(*(cache.through(key(), upstream) for _ in range(5)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["down"] * 5
    assert upstream.calls == 1


async def test_a_cancelled_fetch_is_taken_over(path):
    upstream, cache = Upstream(0.05), Cache(path)
    leader, *others = [asyncio.ensure_future(cache.through(key(), upstream)) for _ in range(4)]
    await asyncio.sleep(0.02)
    others[-1].cancel()
    leader.cancel()
    answers = await asyncio.gather(leader, *others, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, False, True]
    assert upstream.calls == 2
    assert {answer[0].body for answer in answers[1:3]} == {b"answer 2"}


def test_event_loops_in_threads_and_one_after_another(path):
    upstream, cache = Upstream(0.05), Cache(path)
    answers: list[tuple[Entry, bool]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(asyncio.run(cache.through(key(), upstream)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers += [asyncio.run(cache.through(key(), upstream)) for _ in range(2)]
    assert upstream.calls == 1
    assert sorted(hit for _, hit in answers) == [False] + [True] * 5


_CHILD = """
import asyncio, sys, time
from pathlib import Path
from arpo.tools.search.cache import Cache, CacheKey, Entry

async def main():
    cache, log = Cache(Path(sys.argv[1])), Path(sys.argv[2])
    async def fetch():
        with log.open("a") as file:
            file.write("fetched\\n")
        await asyncio.sleep(float(sys.argv[3]))
        return Entry(body=b"answer")
    await asyncio.gather(*(cache.through(CacheKey(kind="search", provider="p", text=t), fetch) for t in "abcabc"))

asyncio.run(main())
"""


def _child(path: Path, log: Path, seconds: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", _CHILD, str(path), str(log), str(seconds)])


def test_processes_fetch_each_key_once(path, tmp_path):
    log = tmp_path / "log"
    children = [_child(path, log, 0.3) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert log.read_text().count("fetched") == 3
    assert Store(path).contents()[0]["entries"] == 3


def test_a_killed_process_leaves_no_lock_and_no_damage(path, tmp_path):
    log = tmp_path / "log"
    child = _child(path, log, 600)
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("fetched") == 3):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    assert asyncio.run(Cache(path).through(key("a"), Upstream()))[0].body == b"answer 1"


def test_a_fork_opens_the_file_anew(path):
    store = Store(path)
    store.put(key(), Entry(body=b"parent"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            entry = store.get(key())
            store.put(key("child"), Entry(body=b"child"))
            code = 0 if entry is not None and entry.body == b"parent" else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    entry = store.get(key("child"))
    assert entry is not None
    assert entry.body == b"child"


def test_the_hash_tells_contents_and_nothing_else(tmp_path):
    entries = [(key(str(n)), Entry(body=str(n).encode(), fetched_at=float(n))) for n in range(5)]
    stores = [Store(tmp_path / name) for name in ("one", "other", "changed")]
    stores[0].put_all(entries)
    for pair_key, entry in reversed(entries):
        stores[1].put(pair_key, Entry(body=entry.body, fetched_at=None))
    stores[2].put_all([*entries[:-1], (entries[-1][0], Entry(body=b"other"))])
    one, other, changed = (store.content_hash() for store in stores)
    assert one == other != changed
    stores[0].put(key("more"), Entry(body=b""))
    assert stores[0].content_hash() != one


def test_what_was_stored_comes_back_whole(path):
    store = Store(path)
    entry = Entry(body=bytes(range(256)), meta={"type": "text/html", "n": [1, None]}, negative=True, fetched_at=12.5)
    asked = key("é \ud800", raw='"é', params={"k": 3, "b": True}, version=7)
    store.put(asked, entry)
    assert store.get(asked) == entry
    [(read, again)] = list(store.pairs())
    assert again == entry
    assert (read.kind, read.provider, read.raw, read.version) == ("search", "p", '"é', 7)
    assert dict(read.params) == {"k": 3, "b": True}


def _overwrite(path: Path, start: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(what)


def test_damage_is_told_with_file_and_remedy(path, tmp_path):
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"this is no database" * 100)
    with pytest.raises(DataError, match=r"nonsense: the cache is damaged or no SQLite database.*move it away"):
        Cache(nonsense)
    store = Store(path)
    store.put_all([(key(str(n)), Entry(body=b"x" * 2000)) for n in range(100)])
    store.close()
    _overwrite(path, 4096, b"\xff" * 8192)
    with pytest.raises(DataError, match=r"cache\.sqlite: .*move it away"):
        [Store(path).get(key(str(n))) for n in range(100)]


def test_a_flipped_bit_in_an_answer_is_noticed(path):
    store = Store(path)
    store.put(key(), Entry(body=b"the answer is 42" * 20))
    store.close()
    _overwrite(path, path.read_bytes().index(b"the answer is 42"), b"the answer is 43")
    with pytest.raises(DataError, match=r"cache\.sqlite: a damaged entry.*move it away"):
        Store(path).get(key())


@pytest.mark.parametrize("marks", ["PRAGMA user_version = 99", "PRAGMA application_id = 5", "CREATE TABLE t (x)"])
def test_another_database_is_refused_and_left_alone(path, marks):
    if marks.startswith("PRAGMA"):
        Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(marks)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="give the cache another path"):
        Cache(path)
    assert path.read_bytes() == before


async def test_a_full_disk_is_told_and_what_was_there_stays(path):
    cache = Cache(path)
    await cache.through(key("small"), Upstream())
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100_000, old[1]))

    async def large() -> Entry:
        return Entry(body=os.urandom(2_000_000))

    try:
        with pytest.raises(StorageError, match=r"cache\.sqlite: "):
            await cache.through(key("large"), large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert (await cache.through(key("small"), Upstream()))[1]
    assert (await cache.through(key("large"), large))[1] is False


def test_the_card_of_a_run(path):
    cache = Cache(path)
    asyncio.run(cache.through(key(), Upstream()))
    card = cache.card()
    assert (card["path"], card["mode"], card["sha256"], card["stored"]) == (
        str(path),
        "read_write",
        cache.content_hash(),
        1,
    )
