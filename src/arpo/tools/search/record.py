"""What a search finds, whoever found it."""

from dataclasses import dataclass
from typing import Protocol


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


class Source(Protocol):
    """Where records come from: an index, a server, a provider on the web, a cache before one of them.

    `find` returns at most `k` records, best first, and an empty list where nothing was found. It raises
    TransientError for what may work in a moment, and any other exception for what will not.
    """

    name: str
    """Of the provider, as records and caches state it."""

    async def find(self, query: str, k: int) -> list[Record]: ...

    async def close(self) -> None: ...
