"""`arpo doctor --engine` against real servers on loopback: a healthy one, and everything that stands between."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import trustme
from completion_server import CompletionServer, Reply
from engine_doctor_cases import KEY, NAMES, OPTIONAL, Body, breaks, examine, extras, holds
from ports import free_port

from arpo.config.doctor import broken
from arpo.config.engine_contact import Patience

pytestmark = pytest.mark.usefixtures("plain_environment")


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
