"""Tavily: passages of pages that fit the query, with a score."""

from typing import Any

from arpo.tools.search.providers.adapter import Adapter, Request, number, ranked, text
from arpo.tools.search.record import Record


class Tavily(Adapter):
    """POST /search {query, max_results}. At most 20 results, queries of at most 400 characters."""

    name = "tavily"
    key_env = "TAVILY_API_KEY"
    address = "https://api.tavily.com"
    max_query = 400
    max_results = 20

    def request(self, query: str, k: int) -> Request:
        body = {"query": query, "max_results": k, **self.params}
        return Request(method="POST", url=f"{self.base_url}/search", json=body)

    def authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def refusal(self, status: int) -> str:
        return "the account's plan or limit is used up" if status in (432, 433) else ""

    def records(self, payload: Any) -> list[Record]:
        items = self.listed(payload, "results")
        return ranked(
            self.name,
            [
                {
                    "title": text(item.get("title")),
                    "snippet": text(item.get("content")),
                    "url": text(item.get("url")),
                    "published": text(item.get("published_date")),
                    "score": number(item.get("score")),
                }
                for item in items
            ],
        )
