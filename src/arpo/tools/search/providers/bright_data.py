"""Bright Data's SERP API: Bing's result page, fetched and parsed. What the paper searched with."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from arpo.tools.search.providers.adapter import Adapter, Request, ranked, text
from arpo.tools.search.record import Record

_SERP = {"mkt": "en-US", "setLang": "en", "brd_json": 1}


class BrightData(Adapter):
    """POST /request {zone, url, format}, where `url` is the result page at Bing; `params` are parameters of that page.

    Understands the page as Bright Data parses it (`organic`), and in the form of Bing's former API (`webPages.value`).
    """

    name = "bright_data"
    key_env = "BRIGHTDATA_API_KEY"
    address = "https://api.brightdata.com"
    max_query = 1500

    def request(self, query: str, k: int) -> Request:
        page = f"https://www.bing.com/search?{urlencode({'q': query, 'count': k, **_SERP, **self.params})}"
        body = {"zone": self.zone, "url": page, "format": "raw"}
        return Request(method="POST", url=f"{self.base_url}/request", json=body)

    def authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def records(self, payload: Any) -> list[Record]:
        if isinstance(payload, Mapping) and "webPages" in payload:
            return ranked(self.name, [_bing(item) for item in self.listed(payload, "webPages", "value")])
        return ranked(self.name, [_organic(item) for item in self.listed(payload, "organic", mark="general")])


def _organic(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": text(item.get("title")),
        "snippet": text(item.get("description")),
        "url": text(item.get("link")),
    }


def _bing(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": text(item.get("name")),
        "snippet": text(item.get("snippet")),
        "url": text(item.get("url")),
        "published": text(item.get("datePublished")),
    }
