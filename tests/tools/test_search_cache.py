"""The cache: what is the same question, what is kept and for how long, and one fetch at a time."""

import asyncio
import time
from pathlib import Path

import pytest
from cache_fakes import Upstream, key

from arpo.errors import DataError, StorageError
from arpo.tools.search.cache import Cache, CacheKey, CacheMiss, Entry, normalise
from arpo.tools.search.store import Store


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
