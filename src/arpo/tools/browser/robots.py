"""robots.txt: what a site asks programs to leave alone, and how slowly to go (RFC 9309).

Fetched like any page, under the same guard and in the same queue, once per origin and hour. A site without one allows
everything; a site whose server fails over it allows nothing for a moment. If the site cannot be reached at all, that is
what the policy is told.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arpo.tools.browser.errors import PageError
from arpo.tools.browser.fetch import Document, Fetcher
from arpo.tools.browser.guard import Address
from arpo.tools.browser.manners import Manners

_LONGEST = 512_000
"""Bytes that are read (the RFC asks for 500 KiB at least)."""
_GOOD_FOR, _TROUBLE_FOR = 3600.0, 60.0
"""Seconds that an answer holds, and that a failing server is taken at its word."""
_SLOWEST = 30.0
"""Seconds between requests that a site may ask for; more is taken for a mistake."""
_ORIGINS = 1000
_NO_RULES = {"redirects", "type", "encoding", "protocol"}
"""Answers that are no robots.txt."""


@dataclass(frozen=True, slots=True)
class _Known:
    """`rules`: a parsed file; None: everything is allowed, or nothing (`closed`)."""

    rules: Any
    closed: bool
    until: float


class Robots:
    """Asks robots.txt before a page is asked for."""

    def __init__(self, fetcher: Fetcher, manners: Manners, now: Callable[[], float] = time.monotonic) -> None:
        """A robots.txt addresses us by the product in the fetcher's user agent: "arpo" in "arpo/1.0 (...)"."""
        self._fetcher, self._manners, self._now = fetcher, manners, now
        self._token = fetcher.agent.split("/")[0].split(" ")[0]
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def admit(self, address: Address) -> None:
        """PageError if the site asks programs not to read this page."""
        known = self._fresh(address.origin)
        if known is None:
            async with self._manners.lookup(address.host):
                known = self._fresh(address.origin) or await self._ask(address)
        if known.closed:
            sentence = f"{address.host} cannot say whether programs may read this page; use another source."
            raise PageError("robots", sentence, lasting=False)
        if known.rules is not None and not known.rules.can_fetch(address.url, self._token):
            raise PageError("robots", f"{address.host} asks programs not to read this page; use another source.")

    def _fresh(self, origin: str) -> _Known | None:
        known = self._known.get(origin)
        return known if known is not None and known.until > self._now() else None

    async def _ask(self, address: Address) -> _Known:
        rules, closed = None, False
        try:
            where = Address(address.scheme, address.host, address.port, "/robots.txt")
            rules = await asyncio.to_thread(_parsed, await self._fetcher.get(where, max_bytes=_LONGEST))
        except PageError as error:
            closed = error.kind == "busy" or (error.status or 0) >= 500
            if not closed and error.kind != "status" and error.kind not in _NO_RULES:
                raise
        if rules is not None and (delay := rules.crawl_delay(self._token)) is not None:
            self._manners.slow_down(address.host, min(delay, _SLOWEST))
        known = _Known(rules, closed, self._now() + (_TROUBLE_FOR if closed else _GOOD_FOR))
        self._known[address.origin] = known
        while len(self._known) > _ORIGINS:
            self._known.popitem(last=False)
        return known


def _parsed(document: Document) -> Any:
    from protego import Protego

    return Protego.parse(document.body.decode("utf-8-sig", "replace"))
