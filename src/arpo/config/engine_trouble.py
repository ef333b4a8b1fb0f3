"""What can go wrong between an address and a JSON answer, each in one sentence with its remedy.

A `Trouble` carries what was seen and what to do. The sentences are made here from an address, from the error of a
connection, or from an answer that is none; none of them contains the key, because whoever shows a Trouble cleans it
with `Contact.clean` (servers like to quote the key back).
"""

import ipaddress
import os
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import httpx

from arpo.config.doctor import Status
from arpo.engine.http import is_loopback

if TYPE_CHECKING:
    from arpo.config.engine_contact import Contact


class Trouble(Exception):  # noqa: N818  (it is a finding on its way, not a mistake in the program)
    """A link of the chain that does not hold: what was seen, and the remedy. `code`: the HTTP status, if it was one."""

    def __init__(self, detail: str, fix: str, status: Status = "problem", code: int | None = None) -> None:
        super().__init__(detail)
        self.detail, self.fix, self.status, self.code = detail, fix, status, code


# --- the address ------------------------------------------------------------------------------------------------------


def parse_address(text: str) -> SplitResult:
    """The base URL in its parts, without a final slash; Trouble if it is none."""
    example = "http://127.0.0.1:8000/v1"
    if "://" not in text:
        raise Trouble(f"{text!r} has no scheme", f"write it whole: http://{text.lstrip('/') or 'HOST:PORT/v1'}")
    try:
        parts = urlsplit(text.strip().rstrip("/"))
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise Trouble(f"{text!r} is not a URL", f"write it like {example}, with a port from 1 to 65535") from None
    if not known:
        raise Trouble(f"{text!r} is not the address of a web server", f"write it like {example}")
    return parts


def proxy_variable(parts: SplitResult) -> str | None:
    """The setting that sends requests for this address to a proxy, by the rules of httpx; None if they go straight."""
    proxies, host = urllib.request.getproxies(), parts.hostname or ""
    scheme = next((scheme for scheme in (parts.scheme, "all") if proxies.get(scheme)), None)
    exempt = [entry.strip().lower().rpartition("://")[2].strip("[]") for entry in proxies.get("no", "").split(",")]
    if scheme is None or any(_exempts(entry, host) for entry in exempt):
        return None
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
    return next((name for name in names if os.environ.get(name)), "the system's settings")


def _exempts(entry: str, host: str) -> bool:
    if not entry or entry in ("*", host):
        return bool(entry)
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return False  # numbers have no suffixes, and ranges such as 127.0.0.0/8 are not understood
    return entry != "localhost" and host.endswith(f".{entry.lstrip('.')}")


# --- the connection ---------------------------------------------------------------------------------------------------


def no_answer(contact: "Contact", error: httpx.HTTPError) -> Trouble:
    """Why a request got no answer at all."""
    for describe in (_proxy_refuses, _wrong_scheme, _too_late, _nobody_there):
        trouble = describe(contact, error)
        if trouble is not None:
            return trouble
    if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)):
        fix = "look at the server's log, and check the port: something else may listen there"
        return Trouble(f"{contact.place} breaks off without an HTTP answer", fix)
    return Trouble(f"no connection to {contact.place}: {error}", "check host, port and network")


def _proxy_refuses(contact: "Contact", error: httpx.HTTPError) -> Trouble | None:
    """With a proxy on the way it is the proxy that is looked up and connected to."""
    name = None if is_loopback(contact.base) else proxy_variable(contact.parts)
    connecting = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)) and not _cause(error, ssl.SSLError)
    if name is None or not (connecting or isinstance(error, httpx.ProxyError)):
        return None
    fix = f"mend {name}, or add {contact.parts.hostname} to NO_PROXY"
    return Trouble(f"the proxy of {name} does not let the request through: {error}", fix)


def _too_late(contact: "Contact", error: httpx.HTTPError) -> Trouble | None:
    if isinstance(error, httpx.ConnectTimeout):
        detail = f"time-out: {contact.place} does not take a connection within {contact.patience.connect:g} s"
        return Trouble(detail, "check host and port, and whether a firewall lies between")
    if isinstance(error, httpx.TimeoutException):
        detail = f"time-out: {contact.place} took the request and gave no answer within {contact.patience.answer:g} s"
        return Trouble(detail, "look at the server's log: it may still be loading its model, or hang")
    return None


def _nobody_there(contact: "Contact", error: httpx.HTTPError) -> Trouble | None:
    if _cause(error, socket.gaierror):
        return Trouble(f"the name {contact.parts.hostname} is not found", "mend the spelling, or give the IP address")
    if not _cause(error, ConnectionRefusedError):
        return None
    start = "start the server" if is_loopback(contact.base) else "start the server there with --host 0.0.0.0"
    fix = f"{start}, or give the port that it printed when it started"
    return Trouble(f"connection refused: nothing listens at {contact.place}", fix)


def _wrong_scheme(contact: "Contact", error: httpx.HTTPError) -> Trouble | None:
    secure, broken_off = contact.parts.scheme == "https", (httpx.RemoteProtocolError, httpx.ReadError)
    certificate, handshake = _cause(error, ssl.SSLCertVerificationError), _cause(error, ssl.SSLError)
    if isinstance(certificate, ssl.SSLCertVerificationError):
        detail = f"the certificate of {contact.place} is not trusted: {certificate.verify_message}"
        return Trouble(detail, "set SSL_CERT_FILE to the certificate of the authority that signed it")
    if secure and (handshake or isinstance(error, httpx.ConnectTimeout)) and _speaks_http(contact):
        detail = f"the address says https, but {contact.place} speaks plain http"
        return Trouble(detail, f"use {_other_scheme(contact)}")
    if handshake:
        return Trouble(
            f"no TLS handshake with {contact.place}: {error}", "check the port, and the versions of TLS there"
        )
    if not secure and isinstance(error, broken_off) and _speaks_tls(contact):
        return _needs_tls(contact)
    return None


def _needs_tls(contact: "Contact") -> Trouble:
    return Trouble(f"the address says http, but {contact.place} speaks TLS", f"use {_other_scheme(contact)}")


def _other_scheme(contact: "Contact") -> str:
    other = "http" if contact.parts.scheme == "https" else "https"
    return f"{other}{contact.base.removeprefix(contact.parts.scheme)}"


def _speaks_tls(contact: "Contact") -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _plain(contact) as plain, context.wrap_socket(plain, server_hostname=contact.parts.hostname):
            return True
    except OSError:
        return False


def _speaks_http(contact: "Contact") -> bool:
    try:
        with _plain(contact) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return plain.recv(5) == b"HTTP/"
    except OSError:
        return False


def _plain(contact: "Contact") -> socket.socket:
    port = contact.parts.port or {"http": 80, "https": 443}[contact.parts.scheme]
    return socket.create_connection((contact.parts.hostname or "", port), contact.patience.connect)


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """The first exception of this kind among those that led to `error`."""
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# --- the answer -------------------------------------------------------------------------------------------------------


def refusal(contact: "Contact", response: httpx.Response) -> Trouble:
    """What a status other than 200 means; it may be a proxy's and not the server's."""
    trouble = _refusal(contact, response)
    proxy = None if is_loopback(contact.base) else proxy_variable(contact.parts)
    if proxy is not None and response.status_code in (403, 407, 502, 503, 504):
        trouble.fix += f"; or add {contact.parts.hostname} to NO_PROXY, if it is the proxy of {proxy} that refuses"
    return trouble


def _refusal(contact: "Contact", response: httpx.Response) -> Trouble:
    code, path, said = response.status_code, response.url.path, _said(response)
    if response.next_request is not None:
        target = str(response.next_request.url).removesuffix("/models")
        return Trouble(f"{path} redirects to {target}", f"use {target}", code=code)
    if code in (401, 403):
        return _key_refused(contact, code)
    if code == 400 and "HTTPS port" in response.text:
        return _needs_tls(contact)
    if code == 404:
        return Trouble(f"{path} does not exist there (404){said}", contact.path_hint(), code=code)
    if code == 429:
        return Trouble(f"too many requests (429){said}", "wait, or raise the server's limit", code=code)
    if code in (502, 503, 504):
        fix = "wait until the server has loaded its model; its log says more"
        return Trouble(f"the server is not ready ({code}){said}", fix, code=code)
    if code >= 500:
        return Trouble(f"the server fails on {path} ({code}){said}", "look at the server's log", code=code)
    return Trouble(f"{path} refuses the request ({code}){said}", contact.speaks, code=code)


def no_json(contact: "Contact", response: httpx.Response) -> Trouble:
    """An answer that is none: a web page, as a rule."""
    is_page = "html" in response.headers.get("content-type", "") or response.text.lstrip()[:1] == "<"
    what = "HTML" if is_page else "something else"
    detail = f"{response.url.path} answers with {what} instead of JSON: the base path is wrong"
    return Trouble(detail, contact.path_hint())


def _key_refused(contact: "Contact", code: int) -> Trouble:
    name = contact.key_variable
    if not contact.key:
        detail = f"the server wants a key ({code}), and the environment variable {name} is not set"
        return Trouble(detail, f"export {name}=..., or name another variable with --key-variable", code=code)
    fix = f"put the right key into {name}, or name another variable with --key-variable"
    return Trouble(f"the server refuses the key in {name} ({code})", fix, code=code)


def _said(response: httpx.Response) -> str:
    """The server's own words, cut short; empty if there are none worth repeating."""
    try:
        body = response.json()
    except ValueError:
        return ""
    words = body.get("error", body.get("detail", body.get("message"))) if isinstance(body, dict) else None
    words = words.get("message") if isinstance(words, dict) else words
    text = " ".join(words.split()) if isinstance(words, str) else ""
    return f": {text[:300]}" if text else ""
