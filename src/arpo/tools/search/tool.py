"""The search tool: one query in, the records of any source out, in the style that the policy was taught on."""

from collections.abc import Mapping, Sequence
from typing import Any

from arpo.seeds import derive
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.search.record import Found, Record, Source, look_up
from arpo.tools.search.render import Style, render


class SearchTool:
    """Answers a query with what `source` finds.

    `top_k`: records asked for. `shuffle`: show them in an order drawn from the query, so that rank alone says nothing.
    `max_snippet`: longest text of one record in characters; None: the style's own.
    """

    description = "searches a collection of texts for a query and returns the passages that match best"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what to look for", "minLength": 1}},
        "required": ["query"],
        "additionalProperties": False,
    }
    stateless = True

    def __init__(
        self,
        source: Source,
        *,
        top_k: int = 2,
        style: Style = "line",
        shuffle: bool = False,
        name: str = "search",
        max_snippet: int | None = None,
        description: str = "",
    ) -> None:
        self.source = source
        self.top_k = top_k
        self.style: Style = style
        self.shuffle = shuffle
        self.name = name
        self.max_snippet = max_snippet
        self.description = description or self.description

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Look up `arguments["query"]`.

        `data["records"]`: what is shown, as plain dicts in the order shown; `data["ids"]`: their ids; `data["missing"]`
        is there and true where a cache that alone may answer had nothing. `score`: the best of the records' scores; 0
        where nothing was found; None if the source gives none.
        """
        query = arguments["query"]
        found = await look_up(self.source, query, self.top_k)
        shown = self._ordered(query, found.records)
        return ToolResult(
            ToolStatus.OK,
            render(shown, self.style, max_snippet=self.max_snippet),
            data=_data(shown, found),
            cached=found.cached,
            score=_best(shown),
            empty=not shown,
        )

    def _ordered(self, query: str, records: Sequence[Record]) -> list[Record]:
        if not self.shuffle:
            return list(records)
        return sorted(records, key=lambda record: derive("search order", query, _named(record)))

    def facts(self) -> dict[str, Any]:
        """What stands behind the tool, for lists and for the card of a run: what the source says, top_k and style."""
        ask = getattr(self.source, "facts", None)
        told: Mapping[str, Any] = ask() if callable(ask) else {"source": self.source.name}
        return {**told, "top_k": self.top_k, "style": self.style}

    async def close(self) -> None:
        await self.source.close()


def _named(record: Record) -> str:
    return record.id or record.url or f"{record.title}\n{record.snippet}"


def _data(shown: Sequence[Record], found: Found) -> dict[str, Any]:
    data: dict[str, Any] = {"records": [record.plain() for record in shown], "ids": [record.id for record in shown]}
    return {**data, "missing": True} if found.missing else data


def _best(records: Sequence[Record]) -> float | None:
    scores = [record.score for record in records if record.score is not None]
    if not records:
        return 0.0
    return max(scores) if scores else None
