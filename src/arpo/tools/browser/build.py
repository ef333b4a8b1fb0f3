"""From settings to the browser tool."""

import ssl
from collections.abc import Sequence

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.browser.extract import Extractor, require_parsers
from arpo.tools.browser.fetch import Fetcher, user_agent
from arpo.tools.browser.manners import Manners
from arpo.tools.browser.robots import Robots
from arpo.tools.browser.server_text import ServerText
from arpo.tools.browser.settings import BrowserSettings
from arpo.tools.browser.summary import Teller
from arpo.tools.browser.tool import BrowseTool, rules
from arpo.tools.browser.transport import Transport, trusting
from arpo.tools.registry import Surroundings


def browser(settings: BrowserSettings, around: Surroundings) -> Sequence[Tool]:
    """The tool of a configuration. Raises ToolSetupError for a missing package, ArpoError for an unusable cache or a
    summarising server that does not answer.
    """
    return [make(settings)]


def make(
    settings: BrowserSettings, transport: Transport | None = None, extractor: Extractor | None = None
) -> BrowseTool:
    """The tool. `transport`, `extractor`: another way to the web, and to the text of documents."""
    require_parsers()
    transport = transport or Transport(rules(settings), context=_context(settings.ca_file))
    manners = Manners(settings.interval, settings.per_host, max_wait=settings.max_wait)
    fetcher = Fetcher(
        transport,
        manners,
        agent=settings.user_agent or user_agent(settings.contact),
        deadline=settings.deadline,
        max_bytes=settings.max_bytes,
        max_redirects=settings.max_redirects,
        probe_host=settings.probe_host,
    )
    extractor = extractor or Extractor(
        workers=settings.workers,
        memory_mb=settings.worker_memory_mb,
        timeout=settings.extract_timeout,
        max_pages=settings.max_pages,
    )
    cache, server = settings.cache.open(), settings.summary.server
    teller = Teller(settings.summary, cache, None if server is None else ServerText(server))
    admit = Robots(fetcher, manners).admit if settings.robots else None
    return BrowseTool(settings, fetcher=fetcher, extractor=extractor, teller=teller, cache=cache, admit=admit)


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return trusting(ca_file)
    except OSError as error:
        raise ToolSetupError(f"browser: ca_file = {ca_file!r} cannot be used ({error})") from error
