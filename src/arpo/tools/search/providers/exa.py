"""Exa: pages found by meaning, with their text."""

from collections.abc import Mapping
from typing import Any

from arpo.tools.search.providers.adapter import Adapter, Request, number, ranked, text
from arpo.tools.search.record import Record


class Exa(Adapter):
    """POST /search {query, numResults, contents}. Asks for the first 1000 characters of a page unless `params.contents`
    says otherwise; highlights, where asked for, go before text.
    """

    name = "exa"
    key_env = "EXA_API_KEY"
    address = "https://api.exa.ai"

    def request(self, query: str, k: int) -> Request:
        body = {"query": query, "numResults": k, "contents": {"text": {"maxCharacters": 1000}}, **self.params}
        return Request(method="POST", url=f"{self.base_url}/search", json=body)

    def authorization(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def records(self, payload: Any) -> list[Record]:
        items = self.listed(payload, "results")
        return ranked(
            self.name,
            [
                {
                    "title": text(item.get("title")),
                    "snippet": _snippet(item),
                    "url": text(item.get("url")),
                    "published": text(item.get("publishedDate")),
                    "score": number(item.get("score")),
                    "id": text(item.get("id")),
                }
                for item in items
            ],
        )


def _snippet(item: Mapping[str, Any]) -> str:
    marked = item.get("highlights")
    if isinstance(marked, list) and any(map(text, marked)):
        return " … ".join(filter(None, map(text, marked)))
    return text(item.get("text")) or text(item.get("summary"))
