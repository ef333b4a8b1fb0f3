"""Answers from outside, kept: so that a run can be repeated, can go on without the network, and pays once per question.

The cache keeps raw responses, so that reading them better later needs no second call. What failed is never kept; what
says that there is nothing is kept for a short time. Equal questions asked at the same moment are one fetch (`flight`).

Modes. `read_write`: what is there and not too old answers; the rest is fetched and kept. `read_only`: what is there
answers, however old it is, so that a run repeated next year reads the same; nothing is ever fetched. `refresh`: what
was kept before this cache was opened counts as missing. `off`: everything is fetched and nothing kept.
"""

import asyncio
import re
import time
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from arpo.tools.results import clean
from arpo.tools.search.flight import Flights, alone
from arpo.tools.search.store import CacheKey, Entry, Store

__all__ = ["Cache", "CacheKey", "CacheMiss", "CacheStats", "Entry", "Fetch", "Mode", "normalise"]

Mode = Literal["read_write", "read_only", "refresh", "off"]
Fetch = Callable[[], Awaitable[Entry]]
DAY = 86400.0
_PREFIX = re.compile(r"^search query: *", re.IGNORECASE)


class CacheMiss(Exception):  # noqa: N818 - not a fault of the machinery, and named so in the settings
    """The cache alone may answer, and it has nothing. That says nothing about other questions."""

    fault = "cache_miss"
    outage = False

    def __init__(self, path: Path, key: CacheKey) -> None:
        super().__init__(
            f"{path}: no entry for the {key.kind} {key.raw or key.text!r:.200} of {key.provider}, and the cache's mode "
            'is read_only; fill it in mode read_write, or set on_miss = "empty"'
        )
        self.key = key


@dataclass(slots=True)
class CacheStats:
    """What a cache did. `hits`: answered from the file; `joined`: by a fetch that was under way; `misses`: neither;
    `expired`: of the misses, those whose entry was too old; `stored`: entries written; `failed`: fetches that failed;
    `fallbacks`: of the misses in mode read_only, those that were told as "nothing found".
    """

    hits: int = 0
    joined: int = 0
    misses: int = 0
    expired: int = 0
    stored: int = 0
    failed: int = 0
    fallbacks: int = 0


def normalise(text: str, *, strip_prefix: bool = False) -> str:
    """The text of a key: Unicode NFC, every run of white space one blank, none at the ends. Nothing else is folded:
    `C++` is not `C`, `1.5` is not `15`, and `Java` not `java`.

    `strip_prefix`: without a leading `search query: `, which policies copy from their prompt.
    """
    text = " ".join(unicodedata.normalize("NFC", clean(text)).split())
    return _PREFIX.sub("", text, count=1) if strip_prefix else text


class Cache:
    """A store of entries behind its mode and time limits.

    Usable from several threads and processes, and from event loops one after another or at once.
    """

    def __init__(
        self, path: Path, mode: Mode = "read_write", *, ttl: float | None = None, negative_ttl: float | None = DAY
    ) -> None:
        """`ttl`, `negative_ttl`: seconds that an answer, and one that says "nothing", is good for; None: for ever.

        Raises DataError if the file is damaged, none of ours or, in mode read_only, not there.
        """
        self.path = path
        self.mode: Mode = mode
        self.ttl, self.negative_ttl = ttl, negative_ttl
        self.stats = CacheStats()
        self.opened = time.time()
        self._store = None if mode == "off" else Store(path, readonly=mode == "read_only")
        self._flights: Flights[tuple[Entry, bool]] = Flights()

    async def through(self, key: CacheKey, fetch: Fetch, *, also: Sequence[CacheKey] = ()) -> tuple[Entry, bool]:
        """The answer to `key`, and whether it was there or under way already; else what `fetch` gives, now kept.

        `also`: keys whose entries answer as well if `key` has none. Raises CacheMiss in mode read_only, StorageError if
        the answer cannot be kept, and whatever `fetch` raises.
        """
        if self._store is None:
            self.stats.misses += 1
            return await self._fetched(fetch), False
        entry = self.peek(key, also=also)
        if entry is not None:
            self.stats.hits += 1
            return entry, True
        if self.mode == "read_only":
            self.stats.misses += 1
            raise CacheMiss(self.path, key)
        (entry, hit), joined = await self._flights.share(key.digest, lambda: self._fetch_alone(key, fetch, also))
        self.stats.joined += joined
        return entry, hit or joined

    def peek(self, key: CacheKey, *, also: Sequence[CacheKey] = ()) -> Entry | None:
        """The entry that answers `key`, if there is one that is good; nothing is fetched and nothing counted."""
        if self._store is None:
            return None
        entries = (self._store.get(each) for each in (key, *also))
        return next((entry for entry in entries if entry is not None and self._good(entry)), None)

    def stored(self, key: CacheKey) -> Entry | None:
        """The entry of `key`, however old; for asking whether it has changed."""
        return None if self._store is None else self._store.get(key)

    def _good(self, entry: Entry) -> bool:
        if self.mode == "read_only":
            return True
        limit = self.negative_ttl if entry.negative else self.ttl
        oldest = self.opened if self.mode == "refresh" else None
        if limit is not None:
            oldest = max(oldest or 0.0, time.time() - limit)
        return oldest is None or (entry.fetched_at is not None and entry.fetched_at >= oldest)

    async def _fetch_alone(self, key: CacheKey, fetch: Fetch, also: Sequence[CacheKey]) -> tuple[Entry, bool]:
        """Another thread or process may have fetched it while this one waited for its turn."""
        assert self._store is not None
        async with alone(self.path.with_name(self.path.name + ".lock"), key.digest):
            entry = self.peek(key, also=also)
            if entry is not None:
                self.stats.hits += 1
                return entry, True
            self.stats.misses += 1
            self.stats.expired += self._store.get(key) is not None
            entry = await self._fetched(fetch)
            await asyncio.to_thread(self._store.put, key, entry)
            self.stats.stored += 1
            return entry, False

    async def _fetched(self, fetch: Fetch) -> Entry:
        try:
            return await fetch()
        except Exception:
            self.stats.failed += 1
            raise

    def content_hash(self) -> str:
        """One hash of all answers kept; empty in mode off. Order and age of the entries do not change it."""
        return "" if self._store is None else self._store.content_hash()

    def card(self) -> dict[str, Any]:
        """For the card of a run: what the answers came from, and what was counted."""
        return {"path": str(self.path), "mode": self.mode, "sha256": self.content_hash(), **asdict(self.stats)}

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._store is not None:
            self._store.close()
