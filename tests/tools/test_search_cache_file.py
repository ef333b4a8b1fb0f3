"""The file behind the cache: threads and processes at once, forks and kills, damage and full disks told by name."""

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
from cache_fakes import Upstream, key

from arpo.errors import DataError, StorageError
from arpo.tools.search.cache import Cache, Entry
from arpo.tools.search.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


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
