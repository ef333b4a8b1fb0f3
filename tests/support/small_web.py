"""A web of our own on loopback: real servers, reached through names and public addresses that exist nowhere else.

`Web.resolver` answers with what a test wrote into `names`; `Web.connector` takes a connection to a public address in
`machines` to the server here that plays it. So the guard judges public addresses as it would outside.
"""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from functools import cache

import httpcore
import trustme

HERE = "93.184.215.14"
"""The public address that the servers here play."""


PROBE = "example.com"
"""What a browser looks up to see whether there is a network."""


@cache
def _authority():
    return trustme.CA()


@dataclass
class Asked:
    host: str
    target: str
    headers: dict


@dataclass
class Web(httpcore.AsyncNetworkBackend):
    """`pages`: from "host/target" or "/target" to an answer, or to a coroutine function of (asked, writer)."""

    names: dict = field(default_factory=lambda: {"good.test": [HERE], "other.test": [HERE], PROBE: [HERE]})
    machines: set = field(default_factory=lambda: {HERE})
    pages: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    connected: list = field(default_factory=list)
    looked_up: list = field(default_factory=list)
    ports: dict = field(default_factory=dict)

    async def __aenter__(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _authority().issue_cert("good.test", "other.test").configure_cert(context)
        self.servers = [
            await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls, limit=1 << 20) for tls in (None, context)
        ]
        self.ports |= {
            port: each.sockets[0].getsockname()[1] for port, each in zip((80, 443), self.servers, strict=True)
        }
        return self

    async def __aexit__(self, *_):
        for server in self.servers:
            server.close()
            await server.wait_closed()

    @property
    def trusting(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _authority().configure_trust(context)
        return context

    async def resolver(self, host, port):
        self.looked_up.append(host)
        answer = self.names.get(host)
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return list(answer)

    async def connect_tcp(self, host, port, timeout=None, local_address=None, socket_options=None):
        self.connected.append((host, port))
        if host not in self.machines:
            raise httpcore.ConnectError(f"nothing at {host}")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.ports.get(port, port), timeout)

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            asked = Asked(headers.get("host", ""), head[0].split(" ")[1], headers)
            self.asked.append(asked)
            page = self.pages.get(asked.host + asked.target, self.pages.get(asked.target, answer(status=404)))
            if callable(page):
                await page(asked, writer)
            else:
                writer.write(page)
            await writer.drain()
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
            writer.close()


def answer(body=b"", *, status=200, kind="text/html", **headers):
    """A whole HTTP answer."""
    fields = {"content-type": kind, "content-length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


def redirect(location, status=302):
    return answer(status=status, location=location)
