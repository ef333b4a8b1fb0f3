"""From settings to search tools."""

from collections.abc import Sequence
from pathlib import Path

from arpo.tools.base import Tool
from arpo.tools.registry import Surroundings
from arpo.tools.search.index import open_corpus
from arpo.tools.search.local import LocalSource
from arpo.tools.search.retriever import RetrieverSource
from arpo.tools.search.settings import SearchServerSettings, SearchSettings
from arpo.tools.search.tool import SearchTool


def local(settings: SearchSettings, around: Surroundings) -> Sequence[Tool]:
    """Search over an index on this machine."""
    path = around.corpora.get(settings.corpus, Path(settings.corpus))
    source = LocalSource(open_corpus(path, settings.index))
    tool = SearchTool(source, top_k=settings.top_k, style=settings.style, shuffle=settings.shuffle, name=settings.name)
    return [tool]


def server(settings: SearchServerSettings, around: Surroundings) -> Sequence[Tool]:
    """Search through a retriever."""
    source = RetrieverSource(settings.url, settings.timeout)
    tool = SearchTool(source, top_k=settings.top_k, style=settings.style, shuffle=settings.shuffle, name=settings.name)
    return [tool]
