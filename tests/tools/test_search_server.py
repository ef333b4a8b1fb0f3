"""The retriever: a real server in a process of its own, and the client's tool against it and against others."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from pydantic import ValidationError
from search_providers import Answer, ProviderServer

from arpo.tools.base import ToolContext, ToolStatus, TransientError
from arpo.tools.registry import Surroundings, build
from arpo.tools.search import Document, SearchIndex
from arpo.tools.search.build import server as build_server
from arpo.tools.search.providers.adapter import ProviderError
from arpo.tools.search.server import MAX_BODY, RequestError, is_loopback, read_request
from arpo.tools.search.settings import SearchServerSettings

HERE = ToolContext()
DOCS = [
    Document("a", "Austria", "capital: Vienna"),
    Document("b", "Belize", "capital: Belmopan"),
    Document("n", "", 'no "title" here\nand two lines'),
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    """Its address, and the process."""
    pytest.importorskip("uvicorn")
    folder = SearchIndex.build(DOCS, tmp_path_factory.mktemp("served") / "index").folder
    command = [sys.executable, "-m", "arpo", "serve-search", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"arpo: 3 passages \(bm25s\) at (http://127\.0\.0\.1:\d+/retrieve)\n", line)
        assert found, line + process.stderr.read()
        yield found[1], process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def url(retriever) -> str:
    return retriever[0]


@pytest.fixture
def other():
    with ProviderServer() as running:
        yield running


def post(url: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url, content=content, trust_env=False, timeout=20)


def settings(url: str, **options) -> SearchServerSettings:
    return SearchServerSettings(url=url, **options)


async def found(url: str, query: str, **options):
    [tool] = build_server(settings(url, **options), Surroundings())
    try:
        return await tool.call({"query": query}, HERE)
    finally:
        await tool.close()


def test_the_protocol_with_scores(url):
    answer = post(url, {"queries": ["capital", "zebra", "austria"], "topk": 2, "return_scores": True}).json()
    [both, nothing, one] = answer["result"]
    assert [item["document"] for item in both] == [
        {"id": "a", "contents": '"Austria"\ncapital: Vienna'},
        {"id": "b", "contents": '"Belize"\ncapital: Belmopan'},
    ]
    assert both[0]["score"] == both[1]["score"] > 0
    assert (nothing, [item["document"]["id"] for item in one]) == ([], ["a"])


def test_the_protocol_without_scores_and_with_what_others_send_besides(url):
    answer = post(url, {"queries": ["belize"], "topk": None, "model": "e5"}).json()
    assert answer == {"result": [[{"id": "b", "contents": '"Belize"\ncapital: Belmopan'}]]}


def test_health(url):
    answer = httpx.get(url.replace("retrieve", "health"), trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "index": "bm25s", "passages": 3})


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"{", 400, "The body is not JSON"),
        (b"\xff", 400, "The body is not JSON"),
        (b"[" * 100_000, 400, "The body is not JSON"),
        ([], 422, "The body must be an object like"),
        ({}, 422, "queries must be a list of strings"),
        ({"queries": "one"}, 422, "queries must be a list of strings"),
        ({"queries": ["one", 2]}, 422, "queries must be a list of strings"),
        ({"queries": []}, 422, "1 to 512 queries, not 0"),
        ({"queries": ["x"] * 513}, 422, "1 to 512 queries, not 513"),
        ({"queries": ["x" * 8193]}, 422, "8192 characters; the longest has 8193"),
        ({"queries": ["x"], "topk": 0}, 422, "topk must be a whole number from 1 to 100"),
        ({"queries": ["x"], "topk": 101}, 422, "topk must be"),
        ({"queries": ["x"], "topk": True}, 422, "topk must be"),
        ({"queries": ["x"], "topk": 1.5}, 422, "topk must be"),
        ({"queries": ["x"], "return_scores": 1}, 422, "return_scores must be true or false"),
    ],
)
def test_what_is_wrong_is_said_in_json(url, body, status, problem):
    answer = post(url, body)
    assert answer.status_code == status
    assert problem in answer.json()["detail"]


def test_other_addresses_and_methods_answer_in_json(url):
    assert httpx.get(url, trust_env=False).status_code == 405
    lost = httpx.get(url + "/x", trust_env=False)
    assert (lost.status_code, lost.json()) == (404, {"detail": "Not Found"})


def test_a_body_without_end_is_cut_off(url):
    sent = []

    def endless():
        for _ in range(4000):
            sent.append(65536)
            yield b" " * 65536

    try:
        answer = httpx.post(url, content=endless(), trust_env=False, timeout=20)
    except httpx.HTTPError:
        pass  # the server closed the connection while the client went on sending
    else:
        assert (answer.status_code, answer.json()["detail"]) == (413, f"The body may have {MAX_BODY} bytes.")
    assert sum(sent) < 8 * MAX_BODY
    assert post(url, {"queries": ["austria"]}).status_code == 200


def test_defaults_of_a_request():
    asked = read_request(b'{"queries": [""]}', default_top_k=7)
    assert (asked.queries, asked.top_k, asked.scores) == ([""], 7, False)
    with pytest.raises(RequestError):
        read_request(b'{"queries": null}', default_top_k=7)


async def test_the_tool_through_the_registry(url):
    toolbox = build([settings(url, top_k=2)])
    result = await toolbox.call("search", {"query": "capital"}, HERE)
    assert (result.status, result.text) == (
        ToolStatus.OK,
        "Doc 1(Title: Austria) capital: Vienna\nDoc 2(Title: Belize) capital: Belmopan",
    )
    assert result.data["ids"] == ["a", "b"]
    assert result.score > 0
    nothing = await toolbox.call("search", {"query": "zebra"}, HERE)
    assert (nothing.text, nothing.empty, nothing.score) == ("No search results found.", True, 0.0)
    untitled = await toolbox.call("search", {"query": "lines"}, HERE)
    assert untitled.data["records"][0]["title"] == ""
    assert untitled.data["records"][0]["snippet"] == DOCS[2].text
    await toolbox.close()


async def test_a_query_that_is_too_long_is_the_models_fault(url):
    toolbox = build([settings(url)])
    result = await toolbox.call("search", {"query": "x" * 9000}, HERE)
    assert (result.status, "at most 8192" in result.text) == (ToolStatus.TOOL_ERROR, True)
    await toolbox.close()


async def test_cached_on_request_and_then_offline(url, tmp_path):
    cache = {"path": str(tmp_path / "cache.sqlite"), "mode": "read_write"}
    first = await found(url, "austria", cache=cache, corpus="three")
    again = await found(url, "austria ", cache=cache, corpus="three")
    assert (first.cached, again.cached, again.text) == (False, True, first.text)
    moved = await found("http://127.0.0.1:9/retrieve", "austria", cache={**cache, "mode": "read_only"}, corpus="three")
    assert (moved.cached, moved.text) == (True, first.text)
    plain = await found(url, "austria")
    assert (plain.cached, list(tmp_path.iterdir()) != []) == (False, True)


async def test_servers_that_answer_with_documents_alone(other):
    documents = [{"contents": '"T"\nbody'}, {"title": "U", "text": "more", "id": 5}]
    other.reply = lambda _: Answer(body={"result": [documents]})
    result = await found(other.url + "/retrieve", "q")
    assert [(one["title"], one["snippet"], one["score"], one["id"]) for one in result.data["records"]] == [
        ("T", "body", None, ""),
        ("U", "more", None, "5"),
    ]
    assert other.requests[0].body == {"queries": ["q"], "topk": 3, "return_scores": True}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(body=b"<html>Sign in</html>"), "a web page instead of JSON"),
        (Answer(body=b'{"result": [['), "no JSON"),
        (Answer(body={"results": []}), r'without \{"result": \[\[\.\.\.\]\]\}'),
        (Answer(body={"result": []}), "without .*result"),
        (Answer(body={"result": [[], []]}), "without .*result"),
        (Answer(body={"result": ["text"]}), "without .*result"),
        (Answer(body={"result": [[5]]}), "a string under 'contents' or 'text'"),
        (Answer(body={"result": [[{"document": {"contents": None}}]]}), "a string under 'contents' or 'text'"),
        (Answer(404, {"detail": "Not Found"}), "check url, it usually ends in /retrieve.*Not Found"),
        (Answer(422, {"detail": "topk"}), "refuses the request.*topk"),
        (Answer(307, {}, {"Location": "http://127.0.0.1:1/"}), "set url to the final one"),
    ],
)
async def test_what_is_no_answer(other, answer, problem):
    other.reply = lambda _: answer
    with pytest.raises(ProviderError, match=problem):
        await found(other.url + "/retrieve", "q")
    assert len(other.requests) == 1


async def test_what_may_work_in_a_moment(other):
    other.reply = lambda _: Answer(429, {"detail": "slow down"}, {"Retry-After": "7"})
    with pytest.raises(TransientError, match="slow down") as caught:
        await found(other.url, "q")
    assert caught.value.after == 7.0
    for answer in (Answer(503, {}), Answer(close=True)):
        other.reply = lambda _, answer=answer: answer
        with pytest.raises(TransientError):
            await found(other.url, "q")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TransientError):
        await found(f"http://127.0.0.1:{port}/retrieve", "q")


async def test_a_failure_is_tried_again_by_the_tool_box(other):
    answers = iter([Answer(503, {}), Answer(body={"result": [[{"document": {"contents": "found"}, "score": 1}]]})])
    other.reply = lambda _: next(answers)
    toolbox = build([settings(other.url, retries=1)])
    result = await toolbox.call("search", {"query": "q"}, HERE)
    assert (result.status, result.text) == (ToolStatus.OK, "Doc 1(Title: ) found")
    await toolbox.close()


async def test_proxies_of_the_environment_are_not_used(url, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert (await found(url, "austria")).data["ids"] == ["a"]


@pytest.mark.parametrize("url", ["", "retriever:8000", "ftp://host/x", "http://user:pw@host/retrieve", "http://h/?q=1"])
def test_addresses_that_are_none(url):
    with pytest.raises(ValidationError, match="url"):
        SearchServerSettings(url=url)


def test_only_loopback_is_loopback():
    assert [
        is_loopback(host) for host in ("127.0.0.1", "::1", "127.8.8.8", "0.0.0.0", "192.0.2.1", "no such host")
    ] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
