"""Providers: the request that each wants, its answer as records, and settings that cannot work."""

import asyncio

import pytest
from pydantic import ValidationError
from search_providers import HERE, KEY, Answer, ProviderServer, search, tool

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolError, ToolStatus
from arpo.tools.registry import Surroundings
from arpo.tools.search.cache import CacheMiss
from arpo.tools.search.web import online
from arpo.tools.search.web_settings import PROVIDERS, WebSearchSettings


@pytest.fixture
def server():
    with ProviderServer() as running:
        yield running


@pytest.fixture(autouse=True)
def key_in_environment(monkeypatch):
    monkeypatch.setenv("TEST_SEARCH_KEY", KEY)


EXPECTED = {
    "serper": [
        ("Box", "q: 42", "https://box.example/", "", None),
        ("Graph", "a thing", "https://graph.example/", "", None),
        ("q 1", "first", "https://a.example/", "2 Jan 2025", None),
        ("q 2", "second", "https://b.example/", "", None),
    ],
    "brave": [
        ("q & more", "the first it's", "https://a.example/", "2025-01-02T03:04:05", None),
        ("q 2", "second", "https://b.example/", "May 1, 2020", None),
    ],
    "tavily": [
        ("q 1", "first", "https://a.example/", "", 0.9),
        ("q 2", "second", "https://b.example/", "", 0.5),
    ],
    "exa": [
        ("q 1", "first", "https://a.example/", "2025-01-02T00:00:00.000Z", 0.3),
        ("", "second … part", "https://b.example/", "", None),
    ],
    "searxng": [
        ("q 1", "first", "https://a.example/", "2025-01-02T00:00:00", 2.0),
        ("q 2", "second", "https://b.example/", "", 1.0),
    ],
    "bright_data": [
        ("q 1", "first", "https://a.example/", "", None),
        ("q 2", "second", "https://b.example/", "", None),
    ],
}


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_answers_become_records(server, tmp_path, provider):
    result = await search(tool(server, provider, tmp_path), "q")
    records = result.data["records"]
    assert [(r["title"], r["snippet"], r["url"], r["published"], r["score"]) for r in records] == EXPECTED[provider]
    assert [r["rank"] for r in records] == list(range(1, len(records) + 1))
    assert {r["provider"] for r in records} == {provider}
    pages = [snippet for _, snippet, *_ in EXPECTED[provider]]
    assert result.text == "\n".join(f"Page {n}: {snippet}" for n, snippet in enumerate(pages, 1))
    assert (result.status, result.cached) == (ToolStatus.OK, False)


REQUESTS = {
    "serper": ("POST", "/search", {}, {"q": "a b", "num": 3, "gl": "de"}),
    "brave": (
        "GET",
        "/res/v1/web/search",
        {"q": "a b", "count": "3", "text_decorations": "false", "gl": "de"},
        None,
    ),
    "tavily": ("POST", "/search", {}, {"query": "a b", "max_results": 3, "gl": "de"}),
    "exa": (
        "POST",
        "/search",
        {},
        {"query": "a b", "numResults": 3, "contents": {"text": {"maxCharacters": 1000}}, "gl": "de"},
    ),
    "searxng": ("GET", "/search", {"q": "a b", "format": "json", "gl": "de"}, None),
    "bright_data": (
        "POST",
        "/request",
        {},
        {
            "zone": "serp1",
            "url": "https://www.bing.com/search?q=a+b&count=3&mkt=en-US&setLang=en&brd_json=1&gl=de",
            "format": "raw",
        },
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_request_that_each_wants(server, tmp_path, provider):
    await search(tool(server, provider, tmp_path, top_k=3, params={"gl": "de"}), " a \n b")
    [asked] = server.requests
    assert (asked.method, asked.path, asked.params, asked.body) == REQUESTS[provider]
    assert asked.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_second_time_costs_nothing(server, tmp_path, provider):
    first = await search(tool(server, provider, tmp_path))
    second = await search(tool(server, provider, tmp_path), "who  wrote C++? ")
    assert (second.text, second.data, second.cached) == (first.text, first.data, True)
    await search(tool(server, provider, tmp_path), "who wrote C?")
    await search(tool(server, provider, tmp_path, params={"gl": "de"}))
    assert len(server.requests) == 3
    offline = tool(server, provider, tmp_path, cache={"mode": "read_only"})
    assert (await search(offline)).text == first.text


def test_equal_questions_at_once_are_one_request(server, tmp_path):
    made = tool(server, "tavily", tmp_path)

    async def group():
        return await asyncio.gather(*(made.call({"query": "q"}, HERE) for _ in range(16)))

    assert len({result.text for result in asyncio.run(group())}) == 1
    assert len(server.requests) == 1
    assert asyncio.run(made.call({"query": "other"}, HERE)).status is ToolStatus.OK  # in another event loop
    assert len(server.requests) == 2


async def test_nothing_found_is_an_answer_and_is_not_kept_for_long(server, tmp_path):
    empty = {
        "serper": {"searchParameters": {"q": "q"}, "credits": 1},
        "brave": {"type": "search", "query": {"original": "q"}},
        "tavily": {"results": []},
        "exa": {"results": []},
        "searxng": {"results": [], "unresponsive_engines": []},
        "bright_data": {"general": {"results_cnt": 0}},
    }
    for provider in PROVIDERS:
        server.reply = lambda _, provider=provider: Answer(body=empty[provider])
        made = tool(server, provider, tmp_path, cache={"negative_ttl": 0.000001})
        for asked in (1, 2):
            result = await made.call({"query": "q"}, HERE)
            assert (result.text, result.empty, result.status) == ("No search results found.", True, ToolStatus.OK)
            assert len(server.requests) == asked
        await made.close()
        server.requests.clear()


async def test_queries_that_cannot_be_asked_are_the_models_business(server, tmp_path):
    for query, said in ((" \n", "empty"), ("x" * 401, "401 characters; at most 400")):
        with pytest.raises(ToolError, match=said):
            await search(tool(server, "tavily", tmp_path), query)
    with pytest.raises(ToolError, match="51 words; at most 50"):
        await search(tool(server, "brave", tmp_path), "a " * 51)
    assert server.requests == []
    lone = await search(tool(server, "tavily", tmp_path), "a \ud800 b")
    assert (lone.status, server.requests[0].body["query"]) == (ToolStatus.OK, "a \ufffd b")


def test_offline_needs_no_key_and_no_server(server, tmp_path, monkeypatch):
    asyncio.run(search(tool(server, "serper", tmp_path), "q"))
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    cache = {"path": str(tmp_path / "cache.sqlite"), "mode": "read_only"}
    for provider in ("serper", "searxng", "bright_data"):
        [made] = online(WebSearchSettings(provider=provider, cache=cache), Surroundings())
        if provider == "serper":
            assert asyncio.run(made.call({"query": "q"}, HERE)).cached
        else:
            with pytest.raises(CacheMiss):
                asyncio.run(made.call({"query": "q"}, HERE))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"provider": "bing"}, "provider"),
        ({"provider": "searxng"}, "needs base_url"),
        ({"provider": "bright_data"}, "needs zone"),
        ({"provider": "serper", "base_url": "ftp://x"}, "starts with http"),
        ({"provider": "serper", "base_url": "https://user:secret@x"}, "without user, password"),
        ({"provider": "serper", "base_url": "https://x/?key=1"}, "query"),
        ({"provider": "tavily", "params": {"api_key": "x"}}, "keys belong in the environment"),
        ({"provider": "tavily", "cache": {"mode": "sometimes"}}, "mode"),
        ({"provider": "tavily", "cache": {"on_miss": "lie"}}, "on_miss"),
    ],
)
def test_settings_that_cannot_work(options, problem):
    with pytest.raises(ValidationError, match=problem):
        WebSearchSettings(**options)


def test_more_results_than_the_provider_gives(server, tmp_path):
    with pytest.raises(ToolSetupError, match="brave gives at most 20 results"):
        tool(server, "brave", tmp_path, top_k=21)


async def test_bings_own_form_from_bright_data(server, tmp_path):
    value = [{"name": "n", "url": "https://a.example/", "snippet": "s", "datePublished": "2025-01-02"}]
    server.reply = lambda _: Answer(body={"_type": "SearchResponse", "webPages": {"value": value}})
    result = await search(tool(server, "bright_data", tmp_path))
    [record] = result.data["records"]
    assert (record["title"], record["snippet"], record["published"]) == ("n", "s", "2025-01-02")
