"""What differs between providers: the request they want, and where their answers keep what.

An adapter is pure: it makes a `Request` of a query and records of a parsed answer. Sending, limits and errors are
`http`'s; keeping is the cache's. So an adapter is some thirty lines, and a provider that is missing is quickly written.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo.errors import ArpoError
from arpo.tools.results import clean
from arpo.tools.search.record import Record

LONGEST = 10_000
"""Characters of a field that are kept."""
MOST = 200
"""Results of an answer that are read; nobody asks for more than 100."""


class ProviderError(ArpoError):
    """A provider refuses, or answers what cannot be understood; trying again would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `params`: of the address; `json`: the body, None for none. It holds no key."""

    method: str
    url: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None


class Adapter(ABC):
    """One provider. `base_url` and `zone` as in the settings; `params`: further parameters, sent as they are."""

    name: str
    key_env: str = ""
    """The usual name of the environment variable with its key; empty: it needs none."""
    address: str = ""
    """Of the provider's own server."""
    max_query: int = 2048
    """Longest query in characters."""
    max_words: int | None = None
    """The same in words."""
    max_results: int = 100
    version: int = 1
    """Raised when the request changes in a way that `params` does not tell."""

    def __init__(self, base_url: str = "", params: Mapping[str, Any] | None = None, zone: str = "") -> None:
        self.base_url = base_url or self.address
        self.params = dict(params or {})
        self.zone = zone

    @abstractmethod
    def request(self, query: str, k: int) -> Request:
        """What to send for the `k` best results."""

    @abstractmethod
    def authorization(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""

    @abstractmethod
    def records(self, payload: Any) -> list[Record]:
        """All results of an answer, best first. Raises ProviderError where it has not the provider's form."""

    def query_fault(self, query: str) -> str:
        """What the policy is to read of a query that the provider would not take; empty if it would."""
        if not query:
            return "The query is empty."
        if len(query) > self.max_query:
            return f"The query has {len(query)} characters; at most {self.max_query} are allowed."
        words = len(query.split())
        if self.max_words is not None and words > self.max_words:
            return f"The query has {words} words; at most {self.max_words} are allowed."
        return ""

    def shape(self, k: int) -> dict[str, Any]:
        """What shapes the answer besides the query, for the cache's key."""
        return {**self.params, "k": k}

    def refusal(self, status: int) -> str:
        """What to do about an HTTP status, where the provider has something of its own to say."""
        return ""

    def listed(self, payload: Any, *path: str, mark: str = "") -> list[Mapping[str, Any]]:
        """The objects of the list at `path` in `payload`, the first MOST.

        A provider may leave the list out where nothing was found; then `mark` names a key that its answers always have.
        """
        value = payload
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None and mark and isinstance(payload, Mapping) and mark in payload:
            return []
        if not isinstance(value, list):
            raise ProviderError(f"{self.name} answered without the list {'.'.join(path)}: {shown(payload)}")
        return [item for item in value[:MOST] if isinstance(item, Mapping)]


def ranked(provider: str, found: list[dict[str, Any]]) -> list[Record]:
    """Records in this order, without those that say nothing."""
    kept = [fields for fields in found if fields["title"] or fields["snippet"]]
    return [Record(rank=rank, provider=provider, **fields) for rank, fields in enumerate(kept, 1)]


def text(value: Any) -> str:
    """A field that should be a text; anything else is as good as absent. Without what could fool a terminal."""
    return clean(value[:LONGEST]) if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A field that should be a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def shown(payload: Any) -> str:
    """The start of an answer, for a message."""
    return f"{payload!r:.200}"
