"""From settings to search tools."""

from collections.abc import Sequence
from pathlib import Path

from arpo.tools.base import Tool
from arpo.tools.registry import Surroundings
from arpo.tools.search.index import open_corpus
from arpo.tools.search.local import LocalSource
from arpo.tools.search.providers.http import Http
from arpo.tools.search.providers.search_server import SearchServer
from arpo.tools.search.record import Source
from arpo.tools.search.rerank import RerankedSource, SentenceEncoder
from arpo.tools.search.settings import SearchServerSettings, SearchSettings
from arpo.tools.search.tool import SearchTool
from arpo.tools.search.web import WebSource


def local(settings: SearchSettings, around: Surroundings) -> Sequence[Tool]:
    """Search over an index on this machine. Raises DataError for the corpus, ToolSetupError for the model."""
    path = around.corpora.get(settings.corpus, Path(settings.corpus))
    source: Source = LocalSource(open_corpus(path, settings.index))
    if settings.rerank is not None:
        encoder = SentenceEncoder(Path(settings.rerank.model), settings.rerank.device)
        source = RerankedSource(source, encoder, settings.rerank.candidates)
    return [_tool(source, settings)]


def server(settings: SearchServerSettings, around: Surroundings) -> Sequence[Tool]:
    """Search through a retriever. Raises DataError for an unusable cache."""
    adapter = SearchServer(settings.url, zone=settings.corpus)
    http = None
    if settings.cache.mode != "read_only":
        http = Http(adapter, "", "", timeout=settings.timeout, max_bytes=settings.max_bytes)
    return [_tool(WebSource(adapter, http, settings.cache.open(), settings.cache), settings)]


def _tool(source: Source, settings: SearchSettings | SearchServerSettings) -> SearchTool:
    return SearchTool(source, top_k=settings.top_k, style=settings.style, shuffle=settings.shuffle, name=settings.name)
