"""What a search finds, whoever found it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One result. `rank` counts from 1; `url` and `published` are empty where the source has none; `score` is on the
    source's own scale, None where it gives none; `id` names the record in its source.
    """

    rank: int
    title: str
    snippet: str
    url: str = ""
    published: str = ""
    provider: str = ""
    score: float | None = None
    id: str = ""

    def plain(self) -> dict[str, Any]:
        """As a dict of JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look-up gave, and how it came about.

    `cached`: the answer was kept from an earlier call. `missing`: the cache, which alone may answer, has nothing for
    this query, and the settings declare that this is to read like a search that found nothing.
    """

    records: Sequence[Record]
    cached: bool = False
    missing: bool = False


class Source(Protocol):
    """Where records come from: an index, a server, a provider on the web, a cache before one of them.

    `find` returns at most `k` records, best first, and an empty list where nothing was found. It raises
    ToolError for a query that cannot be asked, TransientError for what may work in a moment, and any other exception
    for what will not.

    A source that answers from a cache also has `look_up(query, k) -> Found`.
    """

    name: str
    """Of the provider, as records and caches state it."""

    async def find(self, query: str, k: int) -> list[Record]: ...

    async def close(self) -> None: ...


async def look_up(source: Source, query: str, k: int) -> Found:
    """Ask a source; whether the answer was cached is known where the source can tell."""
    asked: Callable[[str, int], Awaitable[Found]] | None = getattr(source, "look_up", None)
    return Found(records=await source.find(query, k)) if asked is None else await asked(query, k)
