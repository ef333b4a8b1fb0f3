"""Providers that fail, each failure told by what can be done about it; and keys, which appear nowhere."""

import asyncio
import gzip
import json
import logging
import sqlite3
from dataclasses import asdict

import pytest
from search_providers import HERE, KEY, Answer, Asked, ProviderServer, honest, search, settings, tool

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolStatus, TransientError
from arpo.tools.registry import Surroundings, build
from arpo.tools.search.providers import ADAPTERS
from arpo.tools.search.providers.adapter import ProviderError
from arpo.tools.search.web import online
from arpo.tools.search.web_settings import PROVIDERS, WebSearchSettings

KEYED = [name for name in PROVIDERS if name != "searxng"]


@pytest.fixture
def server():
    with ProviderServer() as running:
        yield running


@pytest.fixture(autouse=True)
def key_in_environment(monkeypatch):
    monkeypatch.setenv("TEST_SEARCH_KEY", KEY)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_what_may_be_over_in_a_moment(server, tmp_path, status):
    server.reply = lambda _: Answer(status, {"message": "later"}, {"Retry-After": "7"})
    with pytest.raises(TransientError, match=rf"tavily .*HTTP {status}.*later") as caught:
        await search(tool(server, "tavily", tmp_path))
    assert caught.value.after == 7
    server.reply = honest
    assert (await search(tool(server, "tavily", tmp_path))).cached is False


async def test_no_connection_is_transient(server, tmp_path):
    server.reply = lambda _: Answer(close=True)
    with pytest.raises(TransientError, match="tavily"):
        await search(tool(server, "tavily", tmp_path))
    with ProviderServer() as gone:
        made = tool(gone, "tavily", tmp_path)
    with pytest.raises(TransientError, match="ConnectError"):
        await search(made)


async def test_a_silent_server_is_transient(server, tmp_path):
    released = asyncio.Event()
    silent = await asyncio.start_server(lambda *_: released.wait(), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    options = settings(server, "tavily", tmp_path, timeout=0.05).model_copy(update={"base_url": address})
    [made] = online(options, Surroundings())
    with pytest.raises(TransientError, match="no whole answer within"):
        await search(made)
    released.set()
    silent.close()


async def test_an_answer_that_trickles_is_the_machinerys_fault_and_not_a_time_out_of_the_policys(server, tmp_path):
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b" ")
            await asyncio.sleep(0.01)

    slow = await asyncio.start_server(trickle, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}"
    options = settings(server, "tavily", tmp_path, timeout=0.2, retries=0).model_copy(update={"base_url": address})
    toolbox = build([options])
    result = await toolbox.call("search", {"query": "q"}, HERE)
    assert (result.status, "no whole answer within 0.18 s" in result.data["error"]) == (ToolStatus.INFRA_ERROR, True)
    await toolbox.close()
    slow.close()


@pytest.mark.parametrize(
    ("provider", "status", "advice"),
    [
        ("serper", 401, "refuses the key in TEST_SEARCH_KEY"),
        ("exa", 403, "refuses the key in TEST_SEARCH_KEY"),
        ("exa", 402, "wants to be paid"),
        ("tavily", 432, "plan or limit is used up"),
        ("brave", 404, "check base_url"),
        ("brave", 422, "check params"),
        ("serper", 302, "set base_url"),
        ("searxng", 403, r"add `json` under `search: formats:` in its settings\.yml"),
    ],
)
async def test_what_will_not_mend_itself(server, tmp_path, provider, status, advice):
    server.reply = lambda _: Answer(status, {"message": "no"}, {"Location": f"{server.url}/elsewhere"})
    with pytest.raises(ProviderError, match=rf"{provider} .*{advice}.*HTTP {status}"):
        await search(tool(server, provider, tmp_path))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<!DOCTYPE html><html>Sign in", "a web page instead of JSON"),
        (b"  <HTML>", "a web page instead of JSON"),
        (b'{"results": [', "no JSON"),
        (b"", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "without the list results"),
        (b'{"error": "quota"}', "without the list results.*quota"),
        (b'{"results": "none"}', "without the list results"),
    ],
)
async def test_answers_that_are_none_are_refused_and_not_kept(server, tmp_path, body, problem):
    server.reply = lambda _: Answer(body=body)
    with pytest.raises(ProviderError, match=problem):
        await search(tool(server, "tavily", tmp_path))
    server.reply = honest
    assert (await search(tool(server, "tavily", tmp_path))).cached is False


async def test_an_error_in_the_place_of_an_answer_is_not_nothing_found(server, tmp_path):
    server.reply = lambda _: Answer(body={"message": "Unauthorized", "statusCode": 403})
    for provider in ("serper", "brave", "bright_data"):
        with pytest.raises(ProviderError, match="Unauthorized"):
            await search(tool(server, provider, tmp_path))


async def test_engines_that_do_not_answer_are_not_nothing_found(server, tmp_path):
    server.reply = lambda _: Answer(body={"results": [], "unresponsive_engines": [["bing", "CAPTCHA"]]})
    with pytest.raises(TransientError, match="CAPTCHA"):
        await search(tool(server, "searxng", tmp_path))


async def test_odd_fields_are_left_out(server, tmp_path):
    results = [
        "text",
        {"title": 5, "content": None},
        {"title": "t", "content": "good", "score": 10**400, "url": ["x"]},
        {"title": None, "content": "a\x00\ud800b", "score": True},
    ]
    server.reply = lambda _: Answer(body=json.dumps({"results": results}).encode())
    result = await search(tool(server, "tavily", tmp_path))
    assert [(r["title"], r["snippet"], r["score"], r["url"]) for r in result.data["records"]] == [
        ("t", "good", None, ""),
        ("", "a\ufffd\ufffdb", None, ""),
    ]


async def test_an_answer_is_bounded_packed_or_not(server, tmp_path):
    large = b'{"results": [' + b" " * 3_000_000 + b"]}"
    for headers, body in (({}, large), ({"Content-Encoding": "gzip"}, gzip.compress(large))):
        server.reply = lambda _, body=body, headers=headers: Answer(body=body, headers=headers)
        with pytest.raises(ProviderError, match="more than 1000000 bytes"):
            await search(tool(server, "tavily", tmp_path, max_bytes=1_000_000))
    server.reply = lambda _: Answer(401, b"x" * 3_000_000)
    with pytest.raises(ProviderError, match="refuses the key"):
        await search(tool(server, "tavily", tmp_path, max_bytes=1_000_000))


@pytest.mark.parametrize("provider", KEYED)
def test_a_missing_key_is_named_before_anything_runs(server, tmp_path, provider, monkeypatch):
    usual = ADAPTERS[provider].key_env
    monkeypatch.delenv(usual, raising=False)
    zone = {"zone": "z"} if provider == "bright_data" else {}
    made = WebSearchSettings(provider=provider, cache={"path": str(tmp_path / "c.sqlite")}, **zone)
    with pytest.raises(ToolSetupError, match=rf"environment variable {usual}, which is not set"):
        build([made])


async def test_a_miss_offline_is_an_infra_error_or_the_declared_fallback(server, tmp_path):
    await search(tool(server, "tavily", tmp_path), "there")
    statuses = []
    for on_miss in ("error", "empty"):
        toolbox = build([settings(server, "tavily", tmp_path, cache={"mode": "read_only", "on_miss": on_miss})])
        result = await toolbox.call("search", {"query": "not there"}, HERE)
        statuses.append((result.status, result.text, result.empty, result.data.get("missing", False)))
        cache = toolbox.tools[0].source.cache
        assert (cache.stats.misses, cache.stats.fallbacks) == (1, int(on_miss == "empty"))
        await toolbox.close()
    assert statuses == [
        (ToolStatus.INFRA_ERROR, "", False, False),
        (ToolStatus.OK, "No search results found.", True, True),
    ]


@pytest.mark.parametrize("key", ["two words", "new\nline", "sn\u00f6w", "\x00"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(server, tmp_path, monkeypatch, key):
    monkeypatch.setattr("os.environ", {"TEST_SEARCH_KEY": key})
    with pytest.raises(ToolSetupError, match="TEST_SEARCH_KEY holds characters") as caught:
        tool(server, "tavily", tmp_path)
    assert key not in str(caught.value)


async def test_misses_do_not_mean_that_the_tool_is_down(server, tmp_path):
    await search(tool(server, "tavily", tmp_path), "there")
    toolbox = build([settings(server, "tavily", tmp_path, breaker_after=2, cache={"mode": "read_only"})])
    missed = [await toolbox.call("search", {"query": f"not there {n}"}, HERE) for n in range(5)]
    assert {result.data["fault"] for result in missed} == {"cache_miss"}
    assert (await toolbox.call("search", {"query": "there"}, HERE)).status is ToolStatus.OK
    await toolbox.close()


async def test_keys_appear_nowhere(server, tmp_path, caplog):
    """Not in logs, errors, results, settings or the cache, even if the provider repeats the key in all it says."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []

    def parrot(status: int):
        echo = {"results": [{"title": KEY, "content": f"key={KEY}", "url": f"http://x/?k={KEY}"}], "message": KEY}
        echo |= {"organic": echo["results"], "web": {"results": echo["results"]}}
        return lambda _: Answer(status, echo, {"X-Echo": "no"})

    for provider in KEYED:
        for status in (200, 302, 401, 429, 500):
            server.reply = parrot(status)
            made = tool(server, provider, tmp_path)
            told += [repr(made), repr(vars(made)), repr(made.source), repr(vars(made.source))]
            try:
                told.append(repr(asdict(await search(made, f"{provider} {status}"))))
            except (ProviderError, TransientError) as error:
                told += [repr(error), str(error), repr(error.__cause__), repr(error.__context__)]
        told.append(repr(settings(server, provider, tmp_path)))
    server.reply = lambda _: Answer(body=f"<html>{KEY}".encode())
    toolbox = build([settings(server, "tavily", tmp_path)])
    told.append(repr(await toolbox.call("search", {"query": "page"}, HERE)))
    await toolbox.close()
    told += [record.getMessage() for record in caplog.records] + [repr(record.args) for record in caplog.records]
    connection = sqlite3.connect(tmp_path / "cache.sqlite")
    told += [repr(row) for row in connection.execute("SELECT * FROM entries")]
    connection.close()
    assert len([line for line in told if "[key]" in line]) > len(KEYED)
    secrets = (KEY, json.dumps(KEY)[1:-1], KEY.replace("/", "\\/"), KEY[3:15])
    assert not [line for line in told if any(secret in line for secret in secrets)]
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert KEY[3:15].encode() not in files
    sent = [asked for asked in server.requests if KEY in "".join(asked.headers.values())]
    assert len(sent) == len(server.requests)


async def test_proxies_in_the_environment_are_not_used(server, tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await search(tool(server, "tavily", tmp_path))).status is ToolStatus.OK


def test_a_server_that_asks_for_a_key_is_told_apart(server):
    refused = honest(Asked("POST", "/search", {}, {"authorization": "Bearer wrong"}, {"query": "q"}))
    assert refused.status == 401
