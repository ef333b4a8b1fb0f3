"""A retriever behind a URL: the client's side of Search-R1's protocol, as `arpo serve-search` answers it.

    POST URL {"queries": ["..."], "topk": k, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\\"Title\\"\\ntext"}, "score": 12.5}]]}

A server that gives no scores answers with the documents alone; both are read.
"""

from collections.abc import Mapping
from typing import Any

from arpo.tools.search.corpus import title_and_text
from arpo.tools.search.providers.adapter import Adapter, ProviderError, Request, number, ranked, shown, text
from arpo.tools.search.record import Record

MAX_QUERY = 8192
"""Longest query in characters, of client and server."""


class SearchServer(Adapter):
    """The retriever at `base_url`, which is asked as it stands. `zone`: what the cache knows its corpus by."""

    name = "search_server"
    max_query = MAX_QUERY

    def request(self, query: str, k: int) -> Request:
        return Request(method="POST", url=self.base_url, json={"queries": [query], "topk": k, "return_scores": True})

    def authorization(self, key: str) -> dict[str, str]:
        return {}

    def shape(self, k: int) -> dict[str, Any]:
        return {"corpus": self.zone or self.base_url, "k": k}

    def refusal(self, status: int) -> str:
        if 300 <= status < 400:
            return "sends on to another address, which is not followed; set url to the final one"
        if status in (404, 405):
            return "has no retriever at this address; check url, it usually ends in /retrieve"
        return "refuses the request"

    def records(self, payload: Any) -> list[Record]:
        result = payload.get("result") if isinstance(payload, Mapping) else None
        if not isinstance(result, list) or len(result) != 1 or not isinstance(result[0], list):
            raise ProviderError(f'{self.name} answered without {{"result": [[...]]}}, one list: {shown(payload)}')
        return ranked(self.name, [self._read(item) for item in result[0]])

    def _read(self, item: Any) -> dict[str, Any]:
        document = item.get("document", item) if isinstance(item, Mapping) else None
        if not isinstance(document, Mapping) or not isinstance(document.get("text", document.get("contents")), str):
            raise ProviderError(f"{self.name}: a result without a string under 'contents' or 'text': {shown(item)}")
        title, passage = title_and_text(document)
        named = document.get("id", "")
        return {
            "title": text(title),
            "snippet": text(passage),
            "score": number(item.get("score")),
            "id": text(str(named)),
        }
