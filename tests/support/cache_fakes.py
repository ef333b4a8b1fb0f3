"""For tests of caches: short keys, and something to fetch from."""

import asyncio
from typing import Any

from arpo.tools.search.cache import CacheKey, Entry


def key(text: str = "q", **options: Any) -> CacheKey:
    """Of the search for `text` at provider "p"."""
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
