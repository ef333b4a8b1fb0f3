"""Brave Search, an index of its own."""

import html
import re
from typing import Any

from arpo.tools.search.providers.adapter import Adapter, Request, ranked, text
from arpo.tools.search.record import Record

_TAG = re.compile(r"</?strong>")


class Brave(Adapter):
    """GET /res/v1/web/search?q&count. At most 20 results, queries of at most 400 characters and 50 words."""

    name = "brave"
    key_env = "BRAVE_API_KEY"
    address = "https://api.search.brave.com"
    max_query = 400
    max_words = 50
    max_results = 20

    def request(self, query: str, k: int) -> Request:
        params = {"q": query, "count": k, "text_decorations": "false", **self.params}
        return Request(method="GET", url=f"{self.base_url}/res/v1/web/search", params=params)

    def authorization(self, key: str) -> dict[str, str]:
        return {"X-Subscription-Token": key}

    def records(self, payload: Any) -> list[Record]:
        items = self.listed(payload, "web", "results", mark="query")
        return ranked(
            self.name,
            [
                {
                    "title": _plain(item.get("title")),
                    "snippet": _plain(item.get("description")),
                    "url": text(item.get("url")),
                    "published": text(item.get("page_age")) or text(item.get("age")),
                }
                for item in items
            ],
        )


def _plain(value: Any) -> str:
    """Brave marks the words of the query, and escapes the rest as HTML."""
    return html.unescape(_TAG.sub("", text(value)))
