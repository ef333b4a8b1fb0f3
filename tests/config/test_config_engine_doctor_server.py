"""`arpo doctor --engine`: servers that refuse, lack the model, or speak another protocol; and any nonsense at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from completion_server import CompletionServer, Reply, error
from engine_doctor_cases import KEY, Body, answers, breaks, changed, examine, holds

from arpo.config.doctor import broken

pytestmark = pytest.mark.usefixtures("plain_environment")


# --- base path --------------------------------------------------------------------------------------------------------


def page_outside(path: str, request: Body | None, reply: Reply) -> Reply:
    """A web page for everything that is not the protocol, as user interfaces in front of a server do."""
    return reply if path.startswith("/v1/") else Reply(200, "<!doctype html><title>Models</title>")


@pytest.mark.parametrize("path", ["", "/", "/ui", "/v1/chat/completions/x"])
def test_html_instead_of_json(path: str) -> None:
    tamper = page_outside if "v1" not in path else lambda p, _, r: r if p == "/v1/models" else Reply(200, "<html/>")
    with CompletionServer(tamper=tamper) as server:
        found = examine(server.url.removesuffix("/v1") + path)
        breaks(found, "base path", "HTML instead of JSON", f"use {server.url}")


@pytest.mark.parametrize("path", ["", "/", "/v1/completions", "/v1/models", "/v1/chat/completions", "/v2"])
def test_a_wrong_path_is_told_the_right_one(path: str) -> None:
    with CompletionServer() as server:
        found = examine(server.url.removesuffix("/v1") + path)
        breaks(found, "base path", "does not exist there (404)", f"use {server.url}")


def test_no_path_that_would_do() -> None:
    with CompletionServer(tamper=lambda path, request, reply: error(404, "nothing here")) as server:
        breaks(examine(server.url), "base path", "(404): nothing here", f"as a rule {server.url}")


@pytest.mark.parametrize("body", [3, None, "data", ["data"], {"data": 3}])
def test_looking_around_stumbles_over_nothing(body: Any) -> None:
    wrong = lambda path, request, reply: error(404, "no") if path == "/api/models" else Reply(200, body)
    with CompletionServer(tamper=wrong) as server:
        found = examine(server.url.replace("/v1", "/api"))
    assert found["base path"].status == "problem"
    assert found["base path"].fix.endswith("/v1")


def test_a_trailing_slash_is_no_mistake() -> None:
    with CompletionServer() as server:
        assert examine(f"{server.url}/")["base path"].detail == server.url


@pytest.mark.parametrize(
    ("status", "cause", "remedy"),
    [(503, "not ready (503): loading", "loaded its model"), (500, "fails on", "log"), (429, "too many", "wait")],
)
def test_a_server_in_trouble(status: int, cause: str, remedy: str) -> None:
    with CompletionServer(tamper=lambda path, request, reply: error(status, "loading")) as server:
        breaks(examine(server.url), "base path", cause, remedy)


# --- the key ----------------------------------------------------------------------------------------------------------


def test_a_key_that_is_not_set() -> None:
    with CompletionServer(key=KEY) as server:
        breaks(examine(server.url), "key", "wants a key (401), and the environment variable OPENAI_API_KEY", "export")


def test_a_key_that_is_refused_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        return error(403, f"{KEY} may not ask for this") if path.startswith("/v1") else reply

    with CompletionServer(tamper=tamper) as server:
        found = examine(server.url, key_variable="MY_KEY")
        assert f"Bearer {KEY}" in server.headers[0].values()
    breaks(found, "key", "refuses the key in MY_KEY (403)", "MY_KEY")
    assert KEY not in str(found)


def test_a_key_that_a_server_quotes_is_struck_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        return error(400, f"{KEY} is out of credit") if path == "/v1/completions" else reply

    with CompletionServer(key=KEY, tamper=tamper) as server:
        found = examine(server.url)
    breaks(found, "completions", "*** is out of credit", "OpenAI completions protocol")
    assert KEY not in str(found)


def test_a_key_with_a_line_break_around_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with CompletionServer(key=KEY) as server:
        found = examine(server.url)
    assert found["key"].detail == "the one in OPENAI_API_KEY is accepted"
    assert not broken(list(found.values()))


def test_a_key_that_no_header_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\nschlüssel")
    with CompletionServer() as server:
        found = examine(server.url)
    breaks(found, "key", "the value of OPENAI_API_KEY has", "export OPENAI_API_KEY again")
    assert "schl" not in str(found)


def test_the_password_of_an_address_is_used_and_not_shown() -> None:
    with CompletionServer() as server:
        found = examine(server.url.replace("//", f"//me:{KEY}@"))
        assert server.headers[0]["authorization"].startswith("Basic ")
    assert found["address"].detail == server.url
    assert not broken(list(found.values()))
    assert KEY not in str(found)


# --- the model --------------------------------------------------------------------------------------------------------


def two_models(request: Body, body: Body) -> None:
    body["data"].append({**body["data"][0], "id": "other"})


def test_several_models_and_none_chosen() -> None:
    with CompletionServer(tamper=changed("/v1/models", two_models)) as server:
        breaks(examine(server.url), "model", "2 models are served and none is chosen: toy, other", "--model NAME")
        assert not broken(list(examine(server.url, model="toy").values()))


def test_a_model_that_is_not_served() -> None:
    with CompletionServer() as server:
        breaks(examine(server.url, model="toys"), "model", "'toys' is not served; served: toy", "--model toy")


@pytest.mark.parametrize("listing", [{"object": "list", "data": []}, {"models": ["toy"]}, ["toy"], None])
def test_a_list_without_models(listing: Any) -> None:
    with CompletionServer(tamper=changed("/v1/models", lambda request, body: Reply(200, listing))) as server:
        breaks(examine(server.url), "model", "the list of models is empty, or none", "--model NAME")


def unlisted(path: str, request: Body | None, reply: Reply) -> Reply:
    return error(404, "no list") if path == "/v1/models" else reply


def test_a_server_without_a_list_answers_to_a_name() -> None:
    with CompletionServer(tamper=unlisted) as server:
        found = examine(server.url, model="toy")
        assert not broken(list(found.values()))
        assert found["model"].detail == "toy, taken as given"
        holds(found["context length"], "missing", "does not say", "engine.max_context=N")


# --- completions ------------------------------------------------------------------------------------------------------


def only_chat(path: str, request: Body | None, reply: Reply) -> Reply:
    return error(404, "Not Found") if path == "/v1/completions" else reply


def test_a_service_for_chat_only() -> None:
    with CompletionServer(tamper=only_chat) as server:
        breaks(examine(server.url), "completions", "no completions for this model", "offers completions, not only chat")


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"error": "quota exhausted"}, "no `choices`; it has error"),
        ({"choices": []}, "no `choices`; it has choices"),
        ({}, "no `choices`; it has nothing"),
        ({"choices": [{"message": {"role": "assistant", "content": "hi"}}]}, "has no `text`; it has message"),
        (["hi"], "answers with a list instead of a JSON object"),
    ],
)
def test_answers_of_another_shape(body: Any, cause: str) -> None:
    with CompletionServer(tamper=answers(lambda request, _: Reply(200, body))) as server:
        found = examine(server.url)
    assert found["completions"].fix
    breaks(found, "completions", cause, "")


def test_html_in_the_middle_of_the_protocol() -> None:
    with CompletionServer(tamper=answers(lambda request, body: Reply(200, "<html>busy</html>"))) as server:
        breaks(examine(server.url), "completions", "HTML instead of JSON", "/v1")


# --- what a rollout does without --------------------------------------------------------------------------------------


def absent(missing: str) -> Callable[[str, Body | None, Reply], Reply]:
    return lambda path, request, reply: error(404, "Not Found") if path == missing else reply


def test_no_chat() -> None:
    with CompletionServer(tamper=absent("/v1/chat/completions")) as server:
        breaks(examine(server.url), "chat", "does not exist there (404)", "/v1")


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ({"tool_calls": [{"function": {"name": "search", "arguments": {"query": "x"}}}]}, "arguments of a tool call"),
        ({"tool_calls": [{"function": {"name": "search", "arguments": "{'query'"}}]}, "arguments of a tool call"),
        ({"content": '<tool_call>{"name": "search"}</tool_call>'}, "comes back as text"),
    ],
)
def test_tool_calls_that_cannot_be_read(message: Body, cause: str) -> None:
    def change(request: Body, body: Body) -> None:
        if request.get("tools"):
            body["choices"][0]["message"] = message

    with CompletionServer(tool_calls=True, tamper=changed("/v1/chat/completions", change)) as server:
        breaks(examine(server.url), "tool calls", cause, "--tool-call-parser")


def test_an_answer_in_words_is_no_broken_tool_call() -> None:
    def change(request: Body, body: Body) -> None:
        body["choices"][0]["message"] = {"role": "assistant", "content": "Paris."}

    with CompletionServer(tool_calls=True, tamper=changed("/v1/chat/completions", change)) as server:
        assert "without a call" in examine(server.url)["tool calls"].detail


@pytest.mark.parametrize(("switch", "status"), [("True", "ok"), ("False", "problem")])
def test_metrics_tell_of_the_prefix_cache(switch: str, status: str) -> None:
    text = f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{switch}"}} 1.0\n'

    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        return Reply(200, text, {"content-type": "text/plain"}) if path == "/metrics" else reply

    with CompletionServer(tamper=tamper) as server:
        found = examine(server.url)
    assert found["prefix cache"].status == status
    assert not broken(list(found.values()))


# --- everything else --------------------------------------------------------------------------------------------------

NONSENSE: list[Any] = [
    None,
    3,
    "text",
    [],
    [[]],
    {},
    {"data": None},
    {"data": [None]},
    {"data": [{"id": 7}]},
    {"choices": None},
    {"choices": [None]},
    {"choices": [{"text": "x", "logprobs": 3, "token_ids": ["a"]}], "usage": []},
    {"choices": [{"text": "x", "token_ids": [1], "logprobs": {"token_logprobs": [-1], "top_logprobs": [3]}}]},
    {"choices": [{"text": "x", "token_ids": [1], "logprobs": {"token_logprobs": ["?"], "tokens": [None]}}]},
    {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]},
    {"error": {"message": {"nested": KEY}}},
]


@pytest.mark.parametrize("place", ["/v1/models", "/v1/completions", "/v1/chat/completions", ""])
@pytest.mark.parametrize("body", NONSENSE, ids=lambda body: json.dumps(body)[:40])
def test_the_doctor_comes_to_its_end(place: str, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    tamper = lambda path, request, reply: Reply(200, body) if place in ("", path) else reply
    with CompletionServer(tamper=tamper) as server:
        found = examine(server.url)
    assert KEY not in str(found)
    assert all(finding.fix for finding in found.values() if finding.status in ("problem", "missing"))
    assert broken(list(found.values())) == (place != "/v1/chat/completions")
