"""`arpo doctor --engine` against real servers on loopback, healthy and misbehaving in one way each."""

import copy
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trustme
from completion_server import CompletionServer, Reply, error

from arpo.config.doctor import Finding, broken
from arpo.config.engine_contact import Patience
from arpo.config.engine_doctor import CHAIN, examine_engine

QUICK = Patience(connect=2.0, answer=5.0)
NAMES = ["address", *(link.name for link in CHAIN)]
OPTIONAL = {"proxy", "stop strings", "temperature", "context length", "prefix cache", "weight transfer"}
OPTIONAL |= {"chat", "tool calls"}
KEY = "sk-do-not-print-me"

Body = dict[str, Any]
Change = Callable[[Body, Body], Any]  # (request, body) -> None or another body


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def examine(url: str, **options: Any) -> dict[str, Finding]:
    findings = examine_engine(url, **{"patience": QUICK, **options})
    assert [finding.name for finding in findings] == NAMES
    return {finding.name: finding for finding in findings}


def changed(path: str, change: Change) -> Callable[[str, Body | None, Reply], Reply]:
    """A tamper that edits the good answers of one path."""

    def tamper(asked: str, request: Body | None, reply: Reply) -> Reply:
        if asked != path or reply.status != 200:
            return reply
        body = copy.deepcopy(reply.body)
        other = change(request or {}, body)
        return other if isinstance(other, Reply) else replace(reply, body=body if other is None else other)

    return tamper


def extras(asked: str, request: Body | None, reply: Reply) -> Reply:
    """What vLLM has besides the protocol, in development mode and with all details switched on."""
    if asked == "/version":
        return Reply(body={"version": "0.32.0"})
    if asked == "/openapi.json":
        return Reply(body={"paths": {"/collective_rpc": {}, "/update_weight_version": {}, "/health": {}}})
    if asked == "/v1/completions" and reply.status == 200:
        reply.body["usage"]["prompt_tokens_details"] = {"cached_tokens": 256}
    return reply


def holds(finding: Finding, status: str, cause: str, remedy: str) -> None:
    """Status, and one sentence that names the cause and one that names the remedy."""
    assert finding.status == status, finding
    assert cause in finding.detail, finding
    assert remedy in finding.fix, finding
    assert finding.required == (finding.name not in OPTIONAL)
    assert "\n" not in finding.detail + finding.fix


def dependants(name: str) -> set[str]:
    """Links that stand on this one, directly or through others."""
    found = {link.name for link in CHAIN if name in link.needs}
    return found.union(*(dependants(other) for other in found))


def breaks(found: dict[str, Finding], name: str, cause: str, remedy: str, status: str = "problem") -> None:
    """This link alone is broken; what stands on it is not checked, what does not is fine or a known absence."""
    holds(found[name], status, cause, remedy)
    for other in found.values():
        if other.name in dependants(name):
            assert other.status == "not checked", other
        elif other.name != name:
            assert other.status != "problem", other
    assert broken(list(found.values())) == (name not in OPTIONAL)


# --- a healthy server -------------------------------------------------------------------------------------------------


def test_a_healthy_server_is_fit_in_every_link() -> None:
    with CompletionServer(tool_calls=True, tamper=extras) as server:
        found = examine(server.url)
    assert {name: finding.status for name, finding in found.items()} == dict.fromkeys(NAMES, "ok")
    assert not any(finding.fix for finding in found.values())
    assert {name for name in NAMES if not found[name].required} == OPTIONAL
    assert "0.32.0" in found["reachable"].detail
    assert found["model"].detail == "toy"
    assert found["context length"].detail == "4,096 tokens"
    assert found["top-K"].detail == "20 log-probs per token"
    assert "256 of 300" in found["prefix cache"].detail
    assert found["weight transfer"].detail == "/collective_rpc, /update_weight_version"
    assert found["temperature"].detail.endswith("(processed), and cut by top_p: leave rollout.top_p at 1")
    assert found["tool calls"].detail == "1 well-formed"


def test_the_entropies_that_are_shown_enclose_the_true_ones() -> None:
    with CompletionServer() as server:
        found = examine(server.url)
        (request,) = [body for _, body in server.requests if body and body.get("max_tokens") == 16]
        (low, _, high) = found["entropy"].detail.split(" nats")[0].split()
        prompt = server.encode(request["prompt"])
        assert float(low) - 0.01 <= server.entropy(prompt) <= float(high) + 0.01


def test_what_a_plain_server_lacks_breaks_nothing() -> None:
    with CompletionServer() as server:
        found = examine(server.url)
    assert not broken(list(found.values()))
    holds(found["prefix cache"], "missing", "does not show", "nothing to do")
    holds(found["weight transfer"], "missing", "no endpoints", "VLLM_SERVER_DEV_MODE=1")
    holds(found["tool calls"], "missing", "--tool-call-parser", "a rollout needs neither")
    assert found["chat"].status == "ok"


def test_sglang_is_asked_in_its_own_protocol() -> None:
    with CompletionServer(flavour="sglang") as server:
        found = examine(server.url)
        assert {path for path, body in server.requests if body and "top_logprobs_num" in body} == {"/generate"}
    assert not broken(list(found.values()))
    assert found["model"].detail == "toy at SGLang: give a run engine.api=sglang"
    assert {found[name].status for name in ("token ids in", "top-K", "entropy", "stop strings", "temperature")} == {
        "ok"
    }


# --- the address and the way there ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "cause", "remedy"),
    [
        ("127.0.0.1:8000/v1", "has no scheme", "http://127.0.0.1:8000/v1"),
        ("ftp://127.0.0.1/v1", "is not the address of a web server", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:99999/v1", "is not a URL", "port from 1 to 65535"),
        ("http:///v1", "is not the address of a web server", "http://127.0.0.1:8000/v1"),
        ("", "has no scheme", "http://HOST:PORT/v1"),
    ],
)
def test_an_address_that_is_none(url: str, cause: str, remedy: str) -> None:
    found = examine(url)
    holds(found["address"], "problem", cause, remedy)
    assert {found[name].status for name in NAMES[1:]} == {"not checked"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_connection_refused() -> None:
    port = free_port()
    breaks(
        examine(f"http://127.0.0.1:{port}/v1"), "reachable", f"refused: nothing listens at 127.0.0.1:{port}", "start"
    )


def test_a_name_that_is_not_found() -> None:
    found = examine("http://no-such-host.invalid:8000/v1")
    breaks(found, "reachable", "the name no-such-host.invalid is not found", "spelling")


def test_a_server_that_takes_the_request_and_hangs() -> None:
    with CompletionServer(tamper=lambda path, request, reply: replace(reply, hang=True)) as server:
        found = examine(server.url, patience=Patience(2.0, 0.3))
    breaks(found, "reachable", "gave no answer within 0.3 s", "loading its model")


def test_a_machine_that_takes_no_connection() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):  # fill the queue: the next connection finds no place in it
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        found = examine(f"http://127.0.0.1:{full.getsockname()[1]}/v1", patience=Patience(0.3, 5.0))
    breaks(found, "reachable", "does not take a connection within 0.3 s", "firewall")


@contextmanager
def talker(greeting: bytes, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A port that sends `greeting` to whoever connects, over TLS if there is a context."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_talk, args=(listener, greeting, context), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _talk(listener: socket.socket, greeting: bytes, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                connection.sendall(greeting)
                connection.recv(1024)
            except OSError:
                pass
            finally:
                connection.close()


def test_what_listens_is_no_web_server() -> None:
    with talker(b"SSH-2.0-OpenSSH_9.6\r\n") as port:
        found = examine(f"http://127.0.0.1:{port}/v1")
    breaks(found, "reachable", "breaks off without an HTTP answer", "check the port")


def test_a_connection_that_is_cut() -> None:
    with CompletionServer(tamper=lambda path, request, reply: replace(reply, cut=0)) as server:
        found = examine(server.url, patience=Patience(0.3, 5.0))
    breaks(found, "reachable", "breaks off without an HTTP answer", "server's log")


@pytest.fixture(scope="module")
def tls() -> ssl.SSLContext:
    """TLS with a certificate for loopback of an authority that nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


def test_http_to_a_port_that_speaks_tls(tls: ssl.SSLContext) -> None:
    with talker(b"", tls) as port:
        found = examine(f"http://127.0.0.1:{port}/v1")
    breaks(found, "reachable", "says http, but", f"https://127.0.0.1:{port}/v1")


def test_https_to_a_port_that_does_not() -> None:
    with CompletionServer() as server:  # it waits for the end of a line that a handshake never sends
        found = examine(server.url.replace("http:", "https:"), patience=Patience(0.5, 5.0))
        breaks(found, "reachable", "says https, but", f"use {server.url}")


def test_https_to_a_port_that_refuses_handshakes() -> None:
    with talker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        found = examine(f"https://127.0.0.1:{port}/v1")
    breaks(found, "reachable", "speaks plain http", f"use http://127.0.0.1:{port}/v1")


def test_https_to_what_is_neither() -> None:
    with talker(b"SSH-2.0-OpenSSH_9.6\r\n") as port:
        found = examine(f"https://127.0.0.1:{port}/v1")
    breaks(found, "reachable", f"no TLS handshake with 127.0.0.1:{port}", "check the port")


def test_a_web_server_that_says_it_wants_tls() -> None:
    page = "<html><h1>400</h1>The plain HTTP request was sent to HTTPS port</html>"
    with CompletionServer(tamper=lambda path, request, reply: Reply(400, page)) as server:
        breaks(examine(server.url), "base path", "speaks TLS", server.url.replace("http:", "https:"))


def test_a_certificate_that_nobody_signed(tls: ssl.SSLContext) -> None:
    with talker(b"", tls) as port:
        found = examine(f"https://127.0.0.1:{port}/v1")
    breaks(found, "reachable", "is not trusted", "SSL_CERT_FILE")


def test_a_redirect_names_its_target() -> None:
    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        return Reply(308, "", {"location": "https://models.example/v1/models"}) if path == "/v1/models" else reply

    with CompletionServer(tamper=tamper) as server:
        breaks(
            examine(server.url), "base path", "redirects to https://models.example/v1", "use https://models.example/v1"
        )


# --- proxies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_that_captures_loopback(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, f"http://user:{KEY}@127.0.0.1:{free_port()}")
    with CompletionServer() as server:
        found = examine(server.url)
    breaks(found, "proxy", f"{variable} captures requests for 127.0.0.1", "NO_PROXY=127.0.0.1")
    assert KEY not in str(found)


@pytest.mark.parametrize(
    ("exempt", "host", "captured"),
    [
        ("127.0.0.1,localhost", "127.0.0.1", False),
        ("*", "127.0.0.1", False),
        ("http://127.0.0.1", "127.0.0.1", False),
        ("127.0.0.0/8", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        (".example", "models.example", False),
        ("example", "models.example", False),
        ("ample", "models.example", True),
        ("localhost", "my.localhost", True),
    ],
)
def test_exemptions_are_those_of_httpx(exempt: str, host: str, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    from arpo.config.engine_trouble import parse_address, proxy_variable

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    url = f"http://{host}:8000/v1"
    with httpx.Client() as client:
        assert (client._transport_for_url(httpx.URL(url)) is not client._transport) == captured
    assert proxy_variable(parse_address(url)) == ("HTTP_PROXY" if captured else None)


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Reply(403, "<html>Access denied</html>")
    with CompletionServer(tamper=lambda path, request, reply: page) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        found = examine("http://models.example:8000/v1")
        assert proxy.requests[0][0] == "http://models.example:8000/v1/models"
    assert found["proxy"].detail == "requests go through the one in HTTP_PROXY"
    breaks(found, "key", "OPENAI_API_KEY is not set", "add models.example to NO_PROXY")


def test_a_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    breaks(examine("http://models.example:8000/v1"), "reachable", "the proxy of ALL_PROXY", "NO_PROXY")


def test_a_proxy_setting_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:70")
    breaks(examine("http://models.example:8000/v1"), "reachable", "cannot be used", "unset HTTP_PROXY")


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


def answers(change: Change) -> Callable[[str, Body | None, Reply], Reply]:
    return changed("/v1/completions", change)


def choice_changed(edit: Callable[[Body, Body], Any]) -> Callable[[str, Body | None, Reply], Reply]:
    """Edit the choice of every completion, given the request."""

    def change(request: Body, body: Body) -> None:
        edit(request, body["choices"][0])

    return answers(change)


def logprobs_changed(edit: Callable[[Body], Any]) -> Callable[[str, Body | None, Reply], Reply]:
    """Edit the log-probs wherever there are any."""

    def change(request: Body, choice: Body) -> None:
        if choice["logprobs"] is not None:
            edit(choice["logprobs"])

    return choice_changed(change)


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


# --- token ids --------------------------------------------------------------------------------------------------------


def test_a_server_that_gives_text_alone() -> None:
    with CompletionServer(token_ids=False, token_names=False) as server:
        breaks(examine(server.url), "token ids out", "has no token ids", "return_token_ids")


def test_ids_as_names_of_log_probs_will_do() -> None:
    with CompletionServer(token_ids=False) as server:
        assert not broken(list(examine(server.url).values()))


def test_a_server_that_refuses_what_vllm_adds() -> None:
    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        strict = path == "/v1/completions" and request is not None and "return_token_ids" in request
        return error(400, "unknown argument: return_token_ids") if strict else reply

    with CompletionServer(tamper=tamper) as server:
        found = examine(server.url)
    breaks(found, "token ids out", "(400): unknown argument: return_token_ids", "vllm serve")
    assert found["log-probs"].status == found["temperature"].status == "ok"


def test_ids_that_are_cut_short() -> None:
    def shorten(request: Body, choice: Body) -> None:
        choice["token_ids"] = choice["token_ids"] and choice["token_ids"][:-2]

    with CompletionServer(tamper=choice_changed(shorten)) as server:
        found = examine(server.url)
    holds(found["token ids out"], "problem", "6 token ids for 8 sampled tokens", "what edits answers")


def test_a_prompt_that_is_tokenised_again() -> None:
    def add_a_beginning(request: Body, body: Body) -> None:
        if isinstance(request["prompt"], list):
            body["choices"][0]["prompt_token_ids"].insert(0, 1)

    with CompletionServer(tamper=answers(add_a_beginning)) as server:
        breaks(examine(server.url), "token ids in", "a prompt of 54 ids arrives as 55 tokens", "takes ids as they are")


def test_a_prompt_of_ids_that_becomes_others() -> None:
    def replace_one(request: Body, body: Body) -> None:
        if isinstance(request["prompt"], list):
            body["choices"][0]["prompt_token_ids"][0] += 1

    with CompletionServer(tamper=answers(replace_one)) as server:
        breaks(examine(server.url), "token ids in", "tokenises it again", "takes ids as they are")


def test_the_count_alone_gives_a_longer_prompt_away() -> None:
    def count_more(request: Body, body: Body) -> None:
        body["choices"][0]["prompt_token_ids"] = None
        body["usage"]["prompt_tokens"] += 1

    with CompletionServer(tamper=answers(count_more)) as server:
        breaks(examine(server.url), "token ids in", "a prompt of 8 ids arrives as 9 tokens", "takes ids as they are")


# --- log-probs --------------------------------------------------------------------------------------------------------


def test_no_log_probs() -> None:
    def without(request: Body, choice: Body) -> None:
        choice["logprobs"] = None

    with CompletionServer(tamper=choice_changed(without)) as server:
        breaks(examine(server.url), "log-probs", "no log-probs in the answer, although 20", "vllm serve")


def test_log_probs_of_the_first_tokens_only() -> None:
    def shorten(logprobs: Body) -> None:
        logprobs["token_logprobs"] = logprobs["token_logprobs"][:3]

    with CompletionServer(tamper=logprobs_changed(shorten)) as server:
        breaks(examine(server.url), "log-probs", "log-probs for 3 of 16 tokens: they are truncated", "vllm serve")


def test_log_probs_with_a_hole() -> None:
    def lose(logprobs: Body) -> None:
        logprobs["token_logprobs"][0] = None

    with CompletionServer(tamper=logprobs_changed(lose)) as server:
        breaks(examine(server.url), "log-probs", "log-probs for 15 of 16 tokens", "vllm serve")


def test_sampled_and_alternatives_of_different_distributions() -> None:
    def lower(logprobs: Body) -> None:
        logprobs["top_logprobs"] = [
            {name: value - 9 for name, value in row.items()} for row in logprobs["top_logprobs"]
        ]

    with CompletionServer(tamper=logprobs_changed(lower)) as server:
        breaks(examine(server.url), "log-probs", "likelier than the likeliest alternative", "edits log-probs")


def scaled(factor: float, shift: float = 0.0) -> Callable[[Body], None]:
    def edit(logprobs: Body) -> None:
        logprobs["token_logprobs"] = [value * factor + shift for value in logprobs["token_logprobs"]]
        rows = logprobs["top_logprobs"]
        logprobs["top_logprobs"] = [{name: value * factor + shift for name, value in row.items()} for row in rows]

    return edit


@pytest.mark.parametrize("edit", [scaled(0.4342944819), scaled(1.0, 12.0)], ids=["base ten", "logits"])
def test_numbers_that_are_no_natural_logs(edit: Callable[[Body], None]) -> None:
    with CompletionServer(tamper=logprobs_changed(edit)) as server:
        breaks(examine(server.url), "natural logs", "more than 1: no natural logarithms", "processed_logprobs")


def test_too_few_alternatives() -> None:
    with CompletionServer(max_logprobs=1) as server:
        breaks(examine(server.url), "top-K", "1 log-probs per token; an entropy needs 5", "--max-logprobs 20")


def test_alternatives_that_are_cut_silently() -> None:
    def cut(logprobs: Body) -> None:
        logprobs["top_logprobs"] = [
            dict(sorted(row.items(), key=lambda item: -item[1])[:3]) for row in logprobs["top_logprobs"]
        ]

    with CompletionServer(tamper=logprobs_changed(cut)) as server:
        breaks(examine(server.url), "top-K", "3 log-probs per token", "--max-logprobs 20")


def test_no_alternatives_at_all() -> None:
    def drop(logprobs: Body) -> None:
        logprobs["top_logprobs"] = None

    with CompletionServer(tamper=logprobs_changed(drop)) as server:
        found = examine(server.url)
    breaks(found, "top-K", "0 log-probs per token", "--max-logprobs 20")
    assert found["natural logs"].status == "not checked"


def test_five_alternatives_are_enough_with_a_setting() -> None:
    with CompletionServer(max_logprobs=5) as server:
        found = examine(server.url)
    assert not broken(list(found.values()))
    assert found["top-K"].detail == "5 log-probs per token; set engine.top_k=5"


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ([-3.0 - 0.01 * place for place in range(20)], "at every token: log-probs are missing or truncated"),
        ([0.0, *(-900.0 - place for place in range(19))], "the entropy is 0 at every token"),
        ([0.0, *[-9999.0] * 19], "some of the likeliest tokens have no probability"),
    ],
    ids=["constant", "zero", "truncated"],
)
def test_entropies_that_tell_nothing(values: list[float], cause: str) -> None:
    def same_everywhere(logprobs: Body) -> None:
        rows = [dict(zip(row, values, strict=False)) for row in logprobs["top_logprobs"]]
        logprobs["top_logprobs"], logprobs["token_logprobs"] = rows, [values[0]] * len(rows)

    with CompletionServer(tamper=logprobs_changed(same_everywhere)) as server:
        breaks(examine(server.url), "entropy", cause, "")


# --- temperature and stop strings -------------------------------------------------------------------------------------


def test_raw_log_probs_do_at_temperature_one() -> None:
    with CompletionServer(logprobs_mode="raw_logprobs") as server:
        found = examine(server.url)
    breaks(found, "temperature", "log-probs are raw", "--logprobs-mode processed_logprobs")


def test_a_temperature_that_does_something_else() -> None:
    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        odd = path == "/v1/completions" and request is not None and request.get("temperature") == 0.5
        return logprobs_changed(scaled(0.75))(path, request, reply) if odd else reply

    with CompletionServer(tamper=tamper) as server:
        breaks(examine(server.url), "temperature", "by 1.50 instead of 2", "penalties")


class Unstoppable(CompletionServer):
    """Reads `stop` and goes on."""

    async def _complete(self, request: Body) -> Reply:
        return await super()._complete({**request, "stop": []})


def test_stop_strings_that_are_ignored() -> None:
    with Unstoppable() as server:
        breaks(examine(server.url), "stop strings", "stop strings are ignored", "obeys `stop`")


def test_a_stop_string_whose_token_is_dropped() -> None:
    def drop(request: Body, choice: Body) -> None:
        if request.get("stop") and choice["finish_reason"] == "stop":
            choice["token_ids"].pop()

    with CompletionServer(tamper=choice_changed(drop)) as server:
        found = examine(server.url)
    breaks(found, "stop strings", "is missing from the ids", "every sampled token")


def test_a_model_that_ends_at_once_leaves_stop_strings_unchecked() -> None:
    import numpy as np

    def terse(prefix: Any) -> np.ndarray:
        logits = np.linspace(0.0, 3.0, 128)
        logits[ord("$")] = 9.0 if len(prefix) % 2 else 5.0
        return logits

    with CompletionServer(terse) as server:
        found = examine(server.url)
    assert found["stop strings"].status == "not checked"
    assert "too soon" in found["stop strings"].detail


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
