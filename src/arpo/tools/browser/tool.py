"""The browser tool: an address in; title, address and what matters of the page out.

A page goes through four hands: the guard and the fetcher get it, a process of its own takes its text out, the teller
picks or summarises what fits the question, and everything is text for one result. What is kept is the extracted text
with its provenance, so that a run without the network reads the same as the run that filled the cache, whatever
versions of the parsers are installed. A page that is not there, or holds no text, is kept as that for a while; what
may be different in a minute (no connection, too busy) is not.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.browser.defusing import defuse
from arpo.tools.browser.errors import PageError
from arpo.tools.browser.extract import Extractor
from arpo.tools.browser.fetch import Admit, Condition, Document, Fetcher
from arpo.tools.browser.guard import Address, Rules, parse
from arpo.tools.browser.settings import BrowserSettings
from arpo.tools.browser.summary import Page, Teller, Told, digest
from arpo.tools.browser.text_model import TextModel
from arpo.tools.running import off_the_clock
from arpo.tools.search.cache import Cache, CacheKey, CacheMiss, Entry

VERSION = 1
"""Of what an entry of the cache holds."""
_MOST_TITLE, _MOST_URL = 200, 300
_MISSING = "This page cannot be opened."
_CUT = "\n(The page goes on.)"


class BrowseTool:
    """Opens web pages. `reads_context`: what is told depends on the question and the reasoning before the call."""

    description = (
        "opens a web page or a PDF by its address, which begins with https:// or http://, "
        "and returns what it says about the question"
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"url": {"type": "string", "description": "the whole address of the page", "minLength": 1}},
        "required": ["url"],
        "additionalProperties": False,
    }
    reads_context = True
    idempotent = True

    def __init__(
        self,
        settings: BrowserSettings,
        *,
        fetcher: Fetcher,
        extractor: Extractor,
        teller: Teller,
        cache: Cache,
        admit: Admit | None = None,
    ) -> None:
        self.name, self.settings = settings.name, settings
        self._rules = rules(settings)
        self._fetcher, self._extractor, self._teller = fetcher, extractor, teller
        self._cache, self._admit = cache, admit
        self._leading: Counter[str] = Counter()

    # --- the model that summarises -------------------------------------------------------------------------------

    @property
    def wants_policy(self) -> bool:
        """True if the summaries are to be the policy's and it is not bound yet."""
        return self.settings.summary.engine == "policy" and self._teller.model is None

    def bind(self, model: TextModel) -> None:
        """Let `model` write the summaries."""
        self._teller.model = model

    # --- a call --------------------------------------------------------------------------------------------------

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Open `arguments["url"]`.

        `data`: provenance (`url`, `status`, `content_type`, `bytes`, `sha256` of the document, `text_sha256`,
        `fetched_at`, `truncated`, `method`, `pages`, `redirects`), and `told_by`: "passages" or the model that
        summarised. For an error that the policy can act on: `kind`. `missing` is true where a cache that alone may
        answer has nothing.
        """
        try:
            address = parse(arguments["url"])
            self._rules.check(address)
            entry, hit = await self._looked_up(address, arguments["url"])
            if entry.negative:
                return _refused(str(entry.meta["sentence"]), str(entry.meta["kind"]), cached=hit)
            return await self._told(entry, hit, context)
        except PageError as error:
            return _refused(error.sentence, error.kind)
        except CacheMiss:
            if self.settings.cache.on_miss == "error":
                raise
            self._cache.stats.fallbacks += 1
            return _refused(_MISSING, "missing", missing=True)

    async def _told(self, entry: Entry, hit: bool, context: ToolContext) -> ToolResult:
        meta, text = entry.meta, entry.body.decode()
        title = defuse(str(meta["title"]))[:_MOST_TITLE]
        head = (f"Title: {title}\n" if title else "") + f"Address: {str(meta['url'])[:_MOST_URL]}\n\n"
        cut = _CUT if meta["truncated"] else ""
        room = self.settings.max_chars - len(head) - len(cut)
        told = await self._teller.tell(Page(str(meta["url"]), str(meta["title"]), text), context, room)
        by_model = self.settings.summary.engine != "none"
        return ToolResult(
            ToolStatus.OK,
            f"{head}{told.text}{cut}",
            data=_provenance(entry, told),
            cached=hit and (told.cached or not by_model),
            empty=not told.text,
        )

    # --- pages ---------------------------------------------------------------------------------------------------

    async def _looked_up(self, address: Address, raw: str) -> tuple[Entry, bool]:
        """The page, and whether the cache had it. Whoever waits for another call's fetch does so off the clock."""
        key = self._key(address, raw)
        follows = self._leading[address.url] > 0
        self._leading[address.url] += 1
        try:
            with off_the_clock() if follows else nullcontext():
                return await self._cache.through(key, lambda: self._fetched(address, key))
        finally:
            self._leading[address.url] -= 1
            if not self._leading[address.url]:
                del self._leading[address.url]

    def _key(self, address: Address, raw: str) -> CacheKey:
        shape = {"max_bytes": self.settings.max_bytes, "max_pages": self.settings.max_pages}
        return CacheKey(kind="page", provider="web", text=address.url, raw=raw, params=shape, version=VERSION)

    async def _fetched(self, address: Address, key: CacheKey) -> Entry:
        """The page as it is kept. Raises what is not to be kept."""
        old = self._cache.stored(key)
        try:
            document = await self._fetcher.get(
                address, wanted=self.settings.content_types, admit=self._admit, condition=_condition(old)
            )
            if document.status == 304 and old is not None:
                return Entry(body=old.body, meta=old.meta)
            return await self._extracted(document)
        except PageError as error:
            if not error.lasting:
                raise
            return Entry(body=b"", meta={"sentence": error.sentence, "kind": error.kind}, negative=True)

    async def _extracted(self, document: Document) -> Entry:
        if document.truncated and document.content_type == "application/pdf":
            raise PageError("size", f"The document is longer than {self.settings.max_bytes} bytes.")
        got = await self._extractor.extract(document.body, document.content_type, document.charset)
        meta = {
            "url": document.url,
            "status": document.status,
            "content_type": document.content_type,
            "bytes": len(document.body),
            "sha256": hashlib.sha256(document.body).hexdigest(),
            "truncated": document.truncated or got.truncated,
            "method": got.method,
            "pages": got.pages,
            "redirects": list(document.redirects),
            "title": got.title,
            "etag": document.etag,
            "last_modified": document.last_modified,
        }
        return Entry(body=got.text.encode(), meta=meta)

    # --- the run -------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What stands behind the tool, for lists and for the card of a run."""
        model = self._teller.model
        summary = {"engine": self.settings.summary.engine, "model": None if model is None else model.id}
        return {"source": "web", "agent": self._fetcher.agent, "summary": summary, "cache": self._cache.card()}

    async def close(self) -> None:
        """End the processes and close the cache, and the connections of a model of the tool's own."""
        await self._extractor.close()
        self._cache.close()
        close = getattr(self._teller.model, "close", None)
        if close is not None:
            await close()


def rules(settings: BrowserSettings) -> Rules:
    """What may be opened."""
    return Rules(settings.ports, settings.allow_hosts, settings.allow_private, settings.block_hosts)


def _refused(sentence: str, kind: str, *, cached: bool = False, missing: bool = False) -> ToolResult:
    data = {"kind": kind} | ({"missing": True} if missing else {})
    return ToolResult(ToolStatus.TOOL_ERROR, defuse(sentence), data=data, cached=cached, empty=True)


def _condition(old: Entry | None) -> Condition | None:
    """To ask whether an old entry has changed."""
    if old is None or old.negative or not (old.meta["etag"] or old.meta["last_modified"]):
        return None
    return Condition(str(old.meta["url"]), str(old.meta["etag"]), str(old.meta["last_modified"]))


def _provenance(entry: Entry, told: Told) -> dict[str, Any]:
    names = ("url", "status", "content_type", "bytes", "sha256", "truncated", "method", "pages", "redirects", "title")
    when = None if entry.fetched_at is None else datetime.fromtimestamp(entry.fetched_at, UTC).isoformat()
    data = {name: entry.meta[name] for name in names}
    return data | {"text_sha256": digest(entry.body.decode()), "fetched_at": when, "told_by": told.by}
