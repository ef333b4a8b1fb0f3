"""One GET over a connection to an address that was judged, and no other.

The check sits where the connection is made: the host is resolved once, all its addresses are judged, and the socket
goes to one of them, while the Host header, SNI and the certificate's name stay the host's. Whatever a parser or a
redirect did before cannot get past it. Nothing is taken from the environment (proxies, netrc), and nothing is kept from
one request to the next, neither connections nor cookies, so event loops may change.
"""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import certifi
import httpcore

from arpo.tools.browser.errors import NoNetworkError, PageError
from arpo.tools.browser.guard import Address, Rules

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to numeric addresses, in the order in which to try them. Raises socket.gaierror."""

_CONNECT = 5.0
"""Seconds for each address of a host."""
_FIND = 5.0
"""Seconds for a name that is only to be found."""
_LOOKUPS = 8
"""Names looked up at once."""
_MOST_ADDRESSES = 4
"""Of a host that are tried."""
_OUR_END = {errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS}
_NO_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


async def resolve(host: str, port: int) -> list[str]:
    """The operating system's answer, looked up in a thread of our own: names that take long delay nobody else."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_lookups(), look_up)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@cache
def _lookups() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKUPS, "browser-dns")


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to addresses that `rules` let pass. One per request, so that whatever it opened can be closed."""

    def __init__(self, rules: Rules, resolver: Resolver, connector: httpcore.AsyncNetworkBackend) -> None:
        self._rules, self._resolver, self._connector = rules, resolver, connector
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        ips = self._rules.judge(host, port, await self._look_up(host, port))[:_MOST_ADDRESSES]
        failures: list[Exception] = []
        for ip in ips:
            try:
                stream = await self._connector.connect_tcp(ip, port, timeout=timeout, socket_options=socket_options)
                self._opened.append(stream)
                return stream
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failures.append(error)
        raise _not_connected(host, failures) from failures[-1]

    async def _look_up(self, host: str, port: int) -> list[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass  # a name, or a number in one of the spellings that only the resolver knows
        try:
            return await self._resolver(host, port)
        except socket.gaierror as error:
            if error.errno in _NO_NAME:
                raise PageError("host", f"There is no host {host}.") from error
            raise NoNetworkError(f"looking up {host}: {error}") from error
        except UnicodeError as error:
            raise PageError("host", f"There is no host {host}.") from error

    async def sleep(self, seconds: float) -> None:
        await self._connector.sleep(seconds)

    async def close(self) -> None:
        """Close what is still open: httpcore leaves a connection behind that is cancelled in TLS's handshake."""
        for stream in self._opened:
            await stream.aclose()


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers (lower-case names; of several equal ones the last), and the body as it comes, undecoded."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class Transport:
    """GETs under guard. `resolver` and `connector` replace the operating system's; `context`: whom TLS trusts."""

    def __init__(
        self,
        rules: Rules,
        *,
        context: ssl.SSLContext | None = None,
        resolver: Resolver = resolve,
        connector: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self.rules = rules
        self._context, self._resolver = context or trusting(None), resolver
        self._connector = connector or httpcore.AnyIOBackend()

    async def finds(self, host: str) -> bool:
        """True if the host has an address."""
        try:
            async with asyncio.timeout(_FIND):
                return bool(await self._resolver(host, 443))
        except (OSError, UnicodeError):
            return False

    @asynccontextmanager
    async def get(self, address: Address, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        """Ask for `address`. Raises PageError, or NoNetworkError; redirects are answers like others.

        The connection is closed at the end, whatever is left of the body.
        """
        self.rules.check(address)
        backend = _Pinned(self.rules, self._resolver, self._connector)
        pool = httpcore.AsyncConnectionPool(ssl_context=self._context, max_connections=1, network_backend=backend)
        url = httpcore.URL(
            scheme=address.scheme.encode(),
            host=address.host.encode(),
            port=address.port,
            target=address.target.encode(),
        )
        fields = [("Host", address.authority), *headers.items(), ("Connection", "close")]
        limits = {"timeout": {"connect": _CONNECT}}
        try:
            with _in_words(address.host):
                async with pool, pool.stream("GET", url, headers=fields, extensions=limits) as response:
                    got = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                    yield Answer(response.status, got, response.aiter_stream())
        finally:
            await backend.close()


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """A client's TLS context: the certificates in `ca_file`, or those that browsers trust."""
    return ssl.create_default_context(cafile=ca_file or certifi.where())


@contextmanager
def _in_words(host: str) -> Iterator[None]:
    """What the network raises, as PageError or NoNetworkError."""
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
            raise PageError("tls", f"{host} has no valid certificate, so it is not opened.") from error
        raise PageError("connection", f"{host} cannot be connected to safely.", lasting=False) from error
    except httpcore.ProtocolError as error:
        raise PageError("protocol", f"{host} sends something that is no proper web page.") from error
    except (httpcore.NetworkError, httpcore.TimeoutException, ssl.SSLError, OSError) as error:
        raise PageError("connection", f"The connection to {host} broke off.", lasting=False) from error


def _not_connected(host: str, failures: Sequence[Exception]) -> Exception:
    """Why none of a host's addresses could be connected to."""
    causes = [cause for failure in failures for cause in _causes(failure)]
    if all(any(_is_ours(cause) for cause in _causes(failure)) for failure in failures):
        return NoNetworkError(f"connecting to {host}: {causes[-1]}")
    if all(isinstance(failure, httpcore.ConnectTimeout) for failure in failures):
        return PageError("connection", f"{host} does not answer.", lasting=False)
    return PageError("connection", f"{host} does not accept connections.", lasting=False)


def _is_ours(cause: BaseException) -> bool:
    return isinstance(cause, OSError) and cause.errno in _OUR_END


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
