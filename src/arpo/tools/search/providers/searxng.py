"""SearXNG: a search engine of search engines that you run yourself."""

from collections.abc import Mapping
from typing import Any

from arpo.tools.base import TransientError
from arpo.tools.search.providers.adapter import Adapter, Request, number, ranked, text
from arpo.tools.search.record import Record


class SearXNG(Adapter):
    """GET /search?q&format=json. It takes no number of results: a page is what its engines gave.

    An empty page says "nothing found" only if the engines answered; if some did not, it is a failure.
    """

    name = "searxng"

    def request(self, query: str, k: int) -> Request:
        params = {"q": query, "format": "json", **self.params}
        return Request(method="GET", url=f"{self.base_url}/search", params=params)

    def authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def shape(self, k: int) -> dict[str, Any]:
        return self.params

    def refusal(self, status: int) -> str:
        if status != 403:
            return ""
        return (
            "a SearXNG server answers 403 until JSON is switched on: add `json` under `search: formats:` in its "
            "settings.yml and restart it"
        )

    def records(self, payload: Any) -> list[Record]:
        items = self.listed(payload, "results")
        silent = payload.get("unresponsive_engines")
        if not items and isinstance(silent, list) and silent:
            raise TransientError(f"searxng found nothing, and engines of it did not answer: {silent!r:.200}")
        return ranked(self.name, [_page(item) for item in items])


def _page(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": text(item.get("title")),
        "snippet": text(item.get("content")),
        "url": text(item.get("url")),
        "published": text(item.get("publishedDate")),
        "score": number(item.get("score")),
    }
