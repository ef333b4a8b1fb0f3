"""One document from the web: redirects, limits, and what the other side asks for.

Every hop is a new request that passes every check again: the guard's, robots.txt and the queue before its host. A
deadline holds for all hops together; time spent queueing does not count. The body is read decompressed up to a limit
and only if its content type is wanted. A host that answers 429 or 503 is left alone for as long as it says; it is asked
again a few times, and then the policy is told, since some sites never answer programs otherwise.
"""

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from arpo import __version__
from arpo.retry import retry_after
from arpo.tools.base import TransientError
from arpo.tools.browser import decoding
from arpo.tools.browser.errors import NoNetworkError, PageError
from arpo.tools.browser.guard import Address
from arpo.tools.browser.manners import CrowdedError, Manners
from arpo.tools.browser.transport import Answer, Transport

PRIVATE_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Not for another origin than the one that they were meant for."""
_REDIRECTS = {301, 302, 303, 307, 308}
_BUSY = {429, 503}
_BUSY_TRIES = 2
"""Times that a busy host is TransientError, before it is told to the policy."""
_LONGEST_WAIT = 30.0
"""Seconds that a host may ask for and still be waited for."""
_ONLINE = 60.0
"""Seconds for which a connection that was made shows that there is a network."""
_UNKNOWN_TYPES = {"", "application/octet-stream", "binary/octet-stream", "application/x-download"}
_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,60}")
"""A content type that may be quoted to the policy."""
Admit = Callable[[Address], Awaitable[None]]
"""Asked before every request to an address; raises PageError."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is already there of `url`: its ETag and Last-Modified, "" where it had none."""

    url: str
    etag: str = ""
    last_modified: str = ""

    def headers(self) -> dict[str, str]:
        named = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True, slots=True)
class Document:
    """What came. `status` 200, or 304 with an empty body; `content_type` without parameters, lower case; `charset` as
    the header states it; `truncated`: the body goes on; `redirects`: the addresses on the way here.
    """

    url: str
    status: int
    content_type: str
    charset: str
    body: bytes
    truncated: bool = False
    etag: str = ""
    last_modified: str = ""
    redirects: tuple[str, ...] = ()


@dataclass
class Budget:
    """Seconds that may be spent; only what runs within `spend` counts."""

    left: float
    clock: Callable[[], float] = field(default=time.monotonic)

    @asynccontextmanager
    async def spend(self) -> AsyncIterator[None]:
        started = self.clock()
        try:
            async with asyncio.timeout(max(self.left, 0.0)):
                yield
        finally:
            self.left -= self.clock() - started


def user_agent(contact: str = "") -> str:
    """Who we are, and where to complain."""
    return f"arpo/{__version__}" + (f" (+{contact})" if contact else "")


class Fetcher:
    """GETs documents politely. Usable from event loops one after another."""

    def __init__(
        self,
        transport: Transport,
        manners: Manners,
        *,
        agent: str,
        deadline: float = 20.0,
        max_bytes: int = 5_000_000,
        max_redirects: int = 5,
        probe_host: str = "",
    ) -> None:
        """For `probe_host` see BrowserSettings."""
        self.agent, self._probe_host = agent, probe_host
        self._transport, self._manners = transport, manners
        self._deadline, self._max_bytes, self._max_redirects = deadline, max_bytes, max_redirects
        self._busy: OrderedDict[str, int] = OrderedDict()
        self._last_contact = float("-inf")

    async def get(
        self,
        address: Address,
        *,
        wanted: Collection[str] | None = None,
        admit: Admit | None = None,
        condition: Condition | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> Document:
        """The document at `address`, redirects followed. `wanted`: content types (None: any).

        Raises PageError for what the policy may be told, TransientError if another try may help.
        """
        budget, hops, extra = Budget(self._deadline), [address], dict(headers or {})
        while True:
            if admit is not None:
                await admit(hops[-1])
            got = await self._hop(hops, budget, self._headers(hops[-1], extra, condition), wanted, max_bytes)
            if isinstance(got, Document):
                return got
            if got.origin != hops[-1].origin:
                extra = {name: value for name, value in extra.items() if name.lower() not in PRIVATE_HEADERS}
            hops.append(got)
            if len(hops) > self._max_redirects + 1:
                raise PageError("redirects", f"The page redirects more than {self._max_redirects} times.")

    def _headers(self, address: Address, extra: Mapping[str, str], condition: Condition | None) -> dict[str, str]:
        headers = {
            "User-Agent": self.agent,
            "Accept": "text/html,application/xhtml+xml,application/pdf;q=0.9,text/*;q=0.8,*/*;q=0.1",
            "Accept-Language": "en,*;q=0.5",
            "Accept-Encoding": decoding.ACCEPT,
        }
        if condition is not None and condition.url == address.url:
            headers |= condition.headers()
        return headers | dict(extra)

    async def _hop(
        self,
        hops: list[Address],
        budget: Budget,
        headers: Mapping[str, str],
        wanted: Collection[str] | None,
        max_bytes: int | None,
    ) -> Document | Address:
        """The document, or where it is to be looked for next."""
        address = hops[-1]
        self._refuse_resting(address.host)
        try:
            async with (
                self._manners.turn(address.host),
                budget.spend(),
                self._transport.get(address, headers) as answer,
            ):
                self._last_contact = time.monotonic()
                if answer.status in _REDIRECTS and "location" in answer.headers:
                    return address.join(_utf8(answer.headers["location"]))
                self._judge(address, answer)
                return await self._document(hops, answer, wanted, max_bytes or self._max_bytes)
        except CrowdedError as error:
            sentence = f"Too many pages of {address.host} are asked for at once; use another source."
            raise PageError("busy", sentence, lasting=False) from error
        except TimeoutError as error:
            sentence = f"{address.host} did not send the page within {self._deadline:g} s."
            raise PageError("time", sentence, lasting=False) from error
        except NoNetworkError as error:
            raise self._unreachable(address, error) from error
        except PageError as error:
            if error.kind == "host" and not await self._has_network():
                raise TransientError(f"no network: neither {address.host} nor {self._probe_host} is found") from error
            raise

    async def _document(
        self, hops: list[Address], answer: Answer, wanted: Collection[str] | None, limit: int
    ) -> Document:
        kind, charset = content_type(answer.headers.get("content-type", ""))
        body, truncated = b"", False
        if answer.status != 304:
            if wanted is not None and kind not in wanted and kind not in _UNKNOWN_TYPES:
                named = f"a file of type {kind}" if _TYPE.fullmatch(kind) else "something of an unknown kind"
                raise PageError("type", f"This is no text but {named}, which cannot be read here.")
            body, truncated = await decoding.read(answer.body, answer.headers.get("content-encoding", ""), limit)
            kind = _sniffed(body) if kind in _UNKNOWN_TYPES else kind
            if wanted is not None and kind not in wanted:
                raise PageError("type", "This is no text but something of an unknown kind, which cannot be read here.")
        return Document(
            url=hops[-1].url,
            status=answer.status,
            content_type=kind,
            charset=charset,
            body=body,
            truncated=truncated,
            etag=answer.headers.get("etag", ""),
            last_modified=answer.headers.get("last-modified", ""),
            redirects=tuple(hop.url for hop in hops[:-1]),
        )

    def _judge(self, address: Address, answer: Answer) -> None:
        """Raise for a status that brings no document."""
        status = answer.status
        if status in _BUSY:
            raise self._busy_error(address, answer)
        self._busy.pop(address.url, None)
        if 200 <= status < 300 or status == 304:
            return
        meaning = _MEANINGS.get(status, "")
        sentence = f"{address.host} answers with status {status}{f' ({meaning})' if meaning else ''}."
        raise PageError("status", sentence, lasting=status < 500, status=status)

    def _busy_error(self, address: Address, answer: Answer) -> Exception:
        """What to do about a host that wants to be left alone."""
        after = retry_after(answer.headers.get("retry-after"), time.time())
        after = None if after is None or not math.isfinite(after) else after
        self._manners.pause(address.host, min(after or 0.0, 3600.0))
        tries = self._busy[address.url] = self._busy.pop(address.url, 0) + 1
        while len(self._busy) > 1000:
            self._busy.popitem(last=False)
        if tries <= _BUSY_TRIES and (after or 0.0) <= _LONGEST_WAIT:
            return TransientError(f"{address.host}: status {answer.status}", after)
        sentence = f"{address.host} answers with status {answer.status} (too busy); use another source."
        return PageError("busy", sentence, lasting=False, status=answer.status)

    def _refuse_resting(self, host: str) -> None:
        if self._manners.resting(host) > _LONGEST_WAIT:
            raise PageError("busy", f"{host} asks not to be visited for now; use another source.", lasting=False)

    async def _has_network(self) -> bool:
        """False if nothing answered of late and not even the name is found that every network knows."""
        if self._probe_host and time.monotonic() - self._last_contact >= _ONLINE:
            if not await self._transport.finds(self._probe_host):
                return False
            self._last_contact = time.monotonic()
        return True

    def _unreachable(self, address: Address, error: NoNetworkError) -> Exception:
        """Where another host answered a moment ago, it is not the network."""
        if time.monotonic() - self._last_contact < _ONLINE:
            return PageError("connection", f"{address.host} cannot be reached.", lasting=False)
        return TransientError(f"no network: {error}")


_MEANINGS = {
    400: "bad request",
    401: "a login is needed",
    402: "payment is needed",
    403: "access is refused",
    404: "there is no such page",
    410: "the page is gone",
    451: "access is refused for legal reasons",
    500: "the server has a fault",
    502: "the server has a fault",
    504: "the server is too slow",
}


def content_type(header: str) -> tuple[str, str]:
    """The type without parameters in lower case, and the charset parameter, "" where there is none."""
    kind, *parameters = header.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    charset = next((value for name, _, value in pairs if name.strip().lower() == "charset"), "")
    return kind.strip().lower()[:100], charset.strip().strip("\"'").lower()[:40]


def _sniffed(body: bytes) -> str:
    """The type of a document that comes without one."""
    head = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    if b"%PDF-" in body[:1024]:
        return "application/pdf"
    if head[:1] == b"<":
        return "text/html"
    return "text/plain" if b"\0" not in body[:1024] else ""


def _utf8(text: str) -> str:
    """A header's text, which was read as Latin-1, as what it more likely is."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text
