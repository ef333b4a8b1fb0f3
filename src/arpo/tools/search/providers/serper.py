"""Serper: Google's results as JSON."""

from collections.abc import Mapping
from typing import Any

from arpo.tools.search.providers.adapter import Adapter, Request, ranked, text
from arpo.tools.search.record import Record


class Serper(Adapter):
    """POST /search {q, num}. The answer box and the knowledge graph, where there are any, come before the pages."""

    name = "serper"
    key_env = "SERPER_API_KEY"
    address = "https://google.serper.dev"

    def request(self, query: str, k: int) -> Request:
        return Request(method="POST", url=f"{self.base_url}/search", json={"q": query, "num": k, **self.params})

    def authorization(self, key: str) -> dict[str, str]:
        return {"X-API-KEY": key}

    def records(self, payload: Any) -> list[Record]:
        pages = self.listed(payload, "organic", mark="searchParameters")
        return ranked(self.name, [*_answer(payload), *_known(payload), *(_page(item) for item in pages)])


def _page(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": text(item.get("title")),
        "snippet": text(item.get("snippet")),
        "url": text(item.get("link")),
        "published": text(item.get("date")),
    }


def _answer(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    box = payload.get("answerBox")
    if not isinstance(box, Mapping):
        return []
    return [{**_page(box), "snippet": text(box.get("answer")) or text(box.get("snippet"))}]


def _known(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    graph = payload.get("knowledgeGraph")
    if not isinstance(graph, Mapping) or not text(graph.get("description")):
        return []
    url = text(graph.get("descriptionLink")) or text(graph.get("website"))
    return [{"title": text(graph.get("title")), "snippet": text(graph.get("description")), "url": url}]
