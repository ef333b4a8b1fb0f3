"""Search through a provider on the web, behind the cache; and how a run's settings become such a search."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool, ToolError, TransientError
from arpo.tools.registry import Surroundings
from arpo.tools.search.cache import Cache, CacheKey, CacheMiss, Entry, normalise
from arpo.tools.search.legacy import PAGES, imported_keys, read_pages
from arpo.tools.search.providers import ADAPTERS, Adapter
from arpo.tools.search.providers.http import Http, parse
from arpo.tools.search.providers.search_server import SearchServer
from arpo.tools.search.record import Found, Record
from arpo.tools.search.tool import SearchTool
from arpo.tools.search.web_settings import SearchCacheSettings, WebSearchSettings

_SHARE = 0.9
"""Of a call's time limit, for the provider."""


class WebSource:
    """What a provider finds, or its cache holds. `http` is None where the cache alone may answer."""

    def __init__(self, adapter: Adapter, http: Http | None, cache: Cache, settings: SearchCacheSettings) -> None:
        self.name = adapter.name
        self.adapter = adapter
        self.cache = cache
        self._http = http
        self._settings = settings

    async def find(self, query: str, k: int) -> list[Record]:
        """See `Source`."""
        return list((await self.look_up(query, k)).records)

    async def look_up(self, query: str, k: int) -> Found:
        """The `k` best results.

        Raises ToolError for a query that the provider does not take, CacheMiss, TransientError, or ProviderError.
        """
        asked = normalise(query, strip_prefix=self._settings.strip_prefix)
        if fault := self.adapter.query_fault(asked):
            raise ToolError(fault)
        try:
            entry, hit = await self._through(self._key(query, asked, k), asked, k)
        except CacheMiss:
            if self._settings.on_miss == "error":
                raise
            self.cache.stats.fallbacks += 1
            return Found(records=[], missing=True)
        return Found(records=entry_records(self.adapter, entry)[:k], cached=hit)

    async def _through(self, key: CacheKey, asked: str, k: int) -> tuple[Entry, bool]:
        """A provider that keeps silent is the machinery's fault, so this ends before the call's own time limit, which
        would be the policy's.
        """
        limit = None if self._http is None else _SHARE * self._http.timeout
        try:
            async with asyncio.timeout(limit):
                return await self.cache.through(key, lambda: self._fetch(asked, k), also=self._imported(asked))
        except TimeoutError:
            raise TransientError(f"{self.name}: no whole answer within {limit:g} s") from None

    def _key(self, query: str, asked: str, k: int) -> CacheKey:
        shape, version = self.adapter.shape(k), self.adapter.version
        return CacheKey(kind="search", provider=self.name, text=asked, raw=query, params=shape, version=version)

    def _imported(self, asked: str) -> Sequence[CacheKey]:
        if not self._settings.imported or self.cache.mode == "refresh":
            return ()
        return imported_keys(asked, prefixed=self._settings.strip_prefix)

    async def _fetch(self, asked: str, k: int) -> Entry:
        """Ask the provider; only an answer that can be read becomes an entry."""
        if self._http is None:
            raise ToolSetupError(f"{self.name}: built for the cache alone, and asked to fetch")
        entry = Entry(body=await self._http.send(self.adapter.request(asked, k)))
        return entry if entry_records(self.adapter, entry) else Entry(body=entry.body, negative=True)

    def facts(self) -> dict[str, Any]:
        """Provider and cache, the hash of the cache's contents included."""
        return {"source": self.name, "base_url": self.adapter.base_url, "cache": self.cache.card()}

    async def close(self) -> None:
        """Close connections and cache."""
        self.cache.close()
        if self._http is not None:
            await self._http.close()


def entry_records(adapter: Adapter, entry: Entry) -> list[Record]:
    """The records of an entry of this provider, or of an imported one."""
    if entry.meta.get("format") == PAGES:
        return read_pages(entry.body.decode())
    return adapter.records(parse(adapter.name, entry.body))


def _reader(adapter: Adapter) -> Callable[[bytes], list[Record]]:
    return lambda body: adapter.records(parse(adapter.name, body))


READERS: Mapping[str, Callable[[bytes], list[Record]]] = {
    **{name: _reader(made()) for name, made in ADAPTERS.items()},
    SearchServer.name: _reader(SearchServer()),
}
"""By provider: from the body of an entry to its records."""


def online(settings: WebSearchSettings, around: Surroundings) -> Sequence[Tool]:
    """Search through a provider. Raises ToolSetupError for a missing key, DataError for an unusable cache."""
    adapter = ADAPTERS[settings.provider](settings.base_url, settings.params, settings.zone)
    if settings.top_k > adapter.max_results:
        raise ToolSetupError(f"{adapter.name} gives at most {adapter.max_results} results; lower top_k")
    http = None
    if settings.cache.mode != "read_only":
        name = settings.key_env or adapter.key_env
        key = _key(name, adapter.name)
        http = Http(adapter, key, name, timeout=settings.timeout, max_bytes=settings.max_bytes)
    source = WebSource(adapter, http, settings.cache.open(), settings.cache)
    tool = SearchTool(
        source,
        top_k=settings.top_k,
        style=settings.style,
        name=settings.name,
        max_snippet=settings.max_snippet,
        description="searches the web for a query and returns the results that match best",
    )
    return [tool]


def _key(name: str, provider: str) -> str:
    """The key in the environment variable `name`; empty if the provider needs none and none is named."""
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise ToolSetupError(
            f"{provider} needs a key in the environment variable {name}, which is not set; set it, name another one "
            'with key_env, or answer from the cache alone with cache.mode = "read_only"'
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ToolSetupError(f"the key in the environment variable {name} holds characters that a key cannot hold")
    return key
