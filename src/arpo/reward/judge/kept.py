"""Replies of a judge, kept: in a file, or for the life of the process. Equal questions asked at once are one.

Only replies that could be read are kept. An outage or a reply without a verdict says nothing, and is asked again.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from arpo.reward.judge.settings import JudgeSettings
from arpo.tools.search.cache import Cache, CacheKey, CacheMiss, Entry
from arpo.tools.search.flight import Flights

__all__ = ["CacheMiss", "Kept"]

Ask = Callable[[], Awaitable[str]]
_REMEMBERED = 65_536
"""Replies in memory, the last ones."""


class Kept:
    """Replies by what was asked."""

    def __init__(self, settings: JudgeSettings, facts: Mapping[str, Any]) -> None:
        """`facts`: what shapes every reply besides the texts (protocol, hash of the prompt, ...).

        Raises DataError if the file is none of ours or, in mode read_only, not there.
        """
        self._settings, self._facts = settings, dict(facts)
        self._memory: OrderedDict[bytes, str] = OrderedDict()
        self._flights: Flights[str] = Flights()
        path = settings.cache
        self._file = None if path is None else Cache(Path(path).expanduser(), settings.cache_mode)

    async def through(self, asked: Mapping[str, Any], ask: Ask) -> tuple[str, bool]:
        """The reply to what is `asked`, and whether it was there or under way; else what `ask` gives, now kept.

        Raises CacheMiss in mode read_only, StorageError if the file cannot be written, and whatever `ask` raises.
        """
        key = CacheKey(
            kind="verdict", provider=self._settings.model, text=str(asked["answer"]), params=self._facts | dict(asked)
        )
        if self._file is None:
            return await self._remembered(key.digest, ask)

        async def fetch() -> Entry:
            return Entry(body=(await ask()).encode("utf-8", "backslashreplace"), fetched_at=time.time())

        entry, hit = await self._file.through(key, fetch)
        return entry.body.decode(), hit

    async def _remembered(self, digest: bytes, ask: Ask) -> tuple[str, bool]:
        reply, joined = self._memory.get(digest), True
        if reply is None:
            reply, joined = await self._flights.share(digest, ask)
            self._memory[digest] = reply
        self._memory.move_to_end(digest)
        while len(self._memory) > _REMEMBERED:
            self._memory.popitem(last=False)
        return reply, joined

    def card(self) -> dict[str, Any]:
        """For the card of a run."""
        return {"path": None} if self._file is None else self._file.card()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
