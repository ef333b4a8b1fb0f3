"""What a run says about its browser."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from arpo.engine.settings import OpenAISettings
from arpo.settings import Frozen
from arpo.tools.limited import LimitedSettings
from arpo.tools.search.cache_settings import CacheSettings

CONTENT_TYPES = (
    "text/html",
    "application/xhtml+xml",
    "text/plain",
    "text/markdown",
    "text/csv",
    "text/xml",
    "application/xml",
    "application/rss+xml",
    "application/atom+xml",
    "application/json",
    "application/ld+json",
    "application/pdf",
)
"""Kinds of documents that there is text to be had from."""


class SummarySettings(Frozen):
    """Who tells what a page says."""

    engine: Literal["none", "policy", "server"] = "none"
    """"none": the passages of the page that fit the question best; "policy": a summary by the policy that is trained;
    "server": a summary by a model behind an OpenAI-compatible chat server."""

    server: OpenAISettings | None = None
    """The server of engine = "server": `base_url`, `served_model`, `key_variable`, `concurrency`, `timeout`, `retries`
    and `breaker` are used."""

    max_tokens: int = Field(512, ge=1)
    """Longest summary."""

    temperature: float = Field(0.0, ge=0)
    """Of the summary's sampling; 0 is greedy, and equal pages then have equal summaries."""

    max_page_chars: int = Field(20_000, ge=200)
    """Characters of the page that the model gets to read; of a longer page the passages that fit the question best."""

    max_reasoning_chars: int = Field(2000, ge=0)
    """Characters of the policy's last reasoning that go into the prompt, the last ones; 0: none."""

    timeout: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Seconds for one summary. They do not count against the tool's `timeout`."""

    @model_validator(mode="after")
    def _server_goes_with_server(self) -> "SummarySettings":
        if (self.engine == "server") != (self.server is not None):
            raise ValueError('summary.server is needed for summary.engine = "server", and for nothing else')
        return self


class BrowserSettings(LimitedSettings):
    """Fetches a web page or PDF under guard and tells what matters of it."""

    type: Literal["browser"] = "browser"

    name: str = Field("browse", pattern=r"^[A-Za-z_]\w*$")
    """What the policy calls it."""

    timeout: float = Field(default=45.0, gt=0, allow_inf_nan=False)
    max_chars: int = Field(default=4000, ge=500)
    concurrency: int | None = Field(default=64, ge=1)

    contact: str = Field("", max_length=200)
    """An address or URL for those whose servers are visited; it stands in the user agent. Give one before you go on
    the web."""

    user_agent: str | None = Field(None, max_length=300)
    """None: the name and version of this library, and `contact`."""

    deadline: float = Field(20.0, gt=0, allow_inf_nan=False)
    """Seconds for a page, all its redirects included; waiting for one's turn at a host is not counted."""

    max_bytes: int = Field(5_000_000, ge=1000)
    """Longest document, counted after decompression; a longer text is cut there, a longer PDF refused."""

    max_redirects: int = Field(5, ge=0, le=20)

    content_types: tuple[str, ...] = CONTENT_TYPES
    """Others are refused before anything of them is read."""

    ports: tuple[int, ...] = (80, 443)

    allow_hosts: tuple[str, ...] = ()
    """Hosts ("wiki.corp") that may be on a private network, or hosts with a port ("127.0.0.1:8080"), which may then
    also be another than `ports` says. Everything behind them is open to whatever the policy writes."""

    allow_private: bool = False
    """True lets the policy reach every private address. Only for closed networks."""

    block_hosts: tuple[str, ...] = ()
    """Domains never opened, subdomains included; for example where a benchmark's answers are published."""

    robots: bool = True
    """Heed robots.txt."""

    interval: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Seconds between the starts of two requests to one host, at least; more if its robots.txt asks for it."""

    per_host: int = Field(2, ge=1)
    """Requests to one host at once."""

    max_wait: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Seconds that a request waits for its turn at a host; then the policy is told to use another source."""

    workers: int = Field(2, ge=1)
    """Processes that take the text out of documents."""

    worker_memory_mb: int = Field(1024, ge=256)
    """Address space of each of them."""

    extract_timeout: float = Field(10.0, gt=0, allow_inf_nan=False)
    """Seconds to take the text out of a document; a process that needs longer is killed."""

    max_pages: int = Field(50, ge=1)
    """Pages of a PDF that are read, the first ones."""

    probe_host: str = "example.com"
    """A name that is found wherever there is a network. It is looked up, and not connected to, when a host is not
    found, to tell a wrong address from a missing network; empty: a host that is not found is always the former."""

    ca_file: str | None = None
    """Certificates to trust instead of those that browsers do, in PEM; for closed networks."""

    cache: CacheSettings = Field(default_factory=CacheSettings)
    """Pages and summaries are kept here. With mode = "read_only" nothing is fetched."""

    summary: SummarySettings = Field(default_factory=SummarySettings)

    @field_validator("allow_hosts", "block_hosts", "content_types", mode="before")
    @classmethod
    def _lower(cls, names: Any) -> Any:
        return tuple(str(name).strip().lower() for name in names) if isinstance(names, list | tuple) else names

    @field_validator("contact", "user_agent")
    @classmethod
    def _fits_in_a_header(cls, text: str | None) -> str | None:
        if text is not None and not (text.isascii() and text.isprintable()):
            raise ValueError("must be printable ASCII characters, since it is sent as a header")
        return text
