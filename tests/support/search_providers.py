"""A real HTTP server on loopback that answers as the search providers do.

    with ProviderServer() as server:
        server.url                                     # "http://127.0.0.1:PORT"
        server.reply = lambda request: Answer(429, headers={"Retry-After": "7"})

Unless `reply` says otherwise, it answers each provider's address in that provider's form, with results made of the
query, and `refuses` what lacks the provider's key. `requests` keeps what came.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlsplit

from arpo.tools.base import ToolContext, ToolResult
from arpo.tools.registry import Surroundings
from arpo.tools.search import SearchTool
from arpo.tools.search.web import online
from arpo.tools.search.web_settings import WebSearchSettings

KEY = "sk-test-0123456789abcdef/=="
HERE = ToolContext()


@dataclass(frozen=True)
class Asked:
    """A request as it came. `body`: its JSON value, None for none."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """What goes back. `body`: JSON value, or bytes sent as they are. `close`: break the connection off instead."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False


class ProviderServer:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.reply: Callable[[Asked], Answer] = honest
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    owner: ProviderServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
        self.owner.requests.append(asked)
        answer = self.owner.reply(asked)
        if answer.close:
            self.close_connection = True
            return
        payload = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def honest(asked: Asked) -> Answer:
    """What the provider whose address this is would answer."""
    for form in _FORMS:
        if (asked.method, asked.path) == form.place and form.ours(asked):
            if asked.headers.get(form.header, "") != form.value:
                return Answer(401, {"message": "Unauthorized"})
            return Answer(body=form.answer(form.query(asked)))
    return Answer(404, {"message": "no such address"})


@dataclass(frozen=True)
class _Form:
    place: tuple[str, str]
    header: str
    value: str
    query: Callable[[Asked], str]
    answer: Callable[[str], Any]
    ours: Callable[[Asked], bool] = lambda asked: True


def serper(query: str) -> dict[str, Any]:
    return {
        "searchParameters": {"q": query, "type": "search", "engine": "google"},
        "answerBox": {"title": "Box", "answer": f"{query}: 42", "link": "https://box.example/"},
        "knowledgeGraph": {
            "title": "Graph",
            "type": "Thing",
            "description": "a thing",
            "descriptionLink": "https://graph.example/",
            "attributes": {},
        },
        "organic": [
            {
                "title": f"{query} 1",
                "link": "https://a.example/",
                "snippet": "first",
                "position": 1,
                "date": "2 Jan 2025",
            },
            {"title": f"{query} 2", "link": "https://b.example/", "snippet": "second", "position": 2},
        ],
        "credits": 1,
    }


def brave(query: str) -> dict[str, Any]:
    results = [
        {
            "title": f"{query} &amp; more",
            "url": "https://a.example/",
            "description": "the <strong>first</strong> it&#x27;s",
            "age": "2 weeks ago",
            "page_age": "2025-01-02T03:04:05",
        },
        {"title": f"{query} 2", "url": "https://b.example/", "description": "second", "age": "May 1, 2020"},
    ]
    return {"type": "search", "query": {"original": query}, "web": {"type": "search", "results": results}}


def tavily(query: str) -> dict[str, Any]:
    results = [
        {"title": f"{query} 1", "url": "https://a.example/", "content": "first", "score": 0.9, "raw_content": None},
        {"title": f"{query} 2", "url": "https://b.example/", "content": "second", "score": 0.5},
    ]
    return {"query": query, "answer": None, "images": [], "results": results, "response_time": 0.4}


def exa(query: str) -> dict[str, Any]:
    results = [
        {
            "id": "https://a.example/",
            "title": f"{query} 1",
            "url": "https://a.example/",
            "publishedDate": "2025-01-02T00:00:00.000Z",
            "author": None,
            "score": 0.3,
            "text": "first",
        },
        {"id": "b", "title": None, "url": "https://b.example/", "highlights": ["second", "part"]},
    ]
    return {"requestId": "r1", "resolvedSearchType": "neural", "results": results, "costDollars": {"total": 0.005}}


def searxng(query: str) -> dict[str, Any]:
    results = [
        {
            "url": "https://a.example/",
            "title": f"{query} 1",
            "content": "first",
            "engine": "bing",
            "engines": ["bing"],
            "score": 2.0,
            "category": "general",
            "publishedDate": "2025-01-02T00:00:00",
        },
        {"url": "https://b.example/", "title": f"{query} 2", "content": "second", "score": 1.0, "publishedDate": None},
    ]
    return {"query": query, "number_of_results": 2, "results": results, "answers": [], "unresponsive_engines": []}


def bright_data(query: str) -> dict[str, Any]:
    organic = [
        {"title": f"{query} 1", "link": "https://a.example/", "description": "first", "rank": 1, "global_rank": 3},
        {"title": f"{query} 2", "link": "https://b.example/", "description": "second", "rank": 2, "global_rank": 4},
    ]
    return {"general": {"search_engine": "bing", "query": query}, "input": {}, "organic": organic}


def _of_page(asked: Asked) -> str:
    return parse_qs(urlsplit(asked.body["url"]).query)["q"][0]


_FORMS = (
    _Form(("POST", "/search"), "x-api-key", KEY, lambda a: a.body["q"], serper, lambda a: "q" in a.body),
    _Form(("POST", "/search"), "x-api-key", KEY, lambda a: a.body["query"], exa, lambda a: "numResults" in a.body),
    _Form(("POST", "/search"), "authorization", f"Bearer {KEY}", lambda a: a.body["query"], tavily),
    _Form(("GET", "/res/v1/web/search"), "x-subscription-token", KEY, lambda a: a.params["q"], brave),
    _Form(("GET", "/search"), "authorization", "", lambda a: a.params["q"], searxng),
    _Form(("POST", "/request"), "authorization", f"Bearer {KEY}", _of_page, bright_data),
)


def settings(server: ProviderServer, provider: str, tmp_path: Path, **options: Any) -> WebSearchSettings:
    """Of a tool that asks `server`, with its cache in `tmp_path`; its key is in TEST_SEARCH_KEY."""
    keyed = {} if provider == "searxng" else {"key_env": "TEST_SEARCH_KEY"}
    zone = {"zone": "serp1"} if provider == "bright_data" else {}
    cache = {"path": str(tmp_path / "cache.sqlite"), **options.pop("cache", {})}
    return WebSearchSettings(provider=provider, base_url=server.url, cache=cache, **{**keyed, **zone, **options})


def tool(server: ProviderServer, provider: str, tmp_path: Path, **options: Any) -> SearchTool:
    [made] = online(settings(server, provider, tmp_path, **options), Surroundings())
    assert isinstance(made, SearchTool)
    return made


async def search(made: SearchTool, query: str = "who wrote C++?") -> ToolResult:
    """One call, after which the tool is closed."""
    try:
        return await made.call({"query": query}, HERE)
    finally:
        await made.close()
