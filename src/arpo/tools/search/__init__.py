"""Search: sources of records, and the tool that shows them to a policy."""

from arpo.tools.search.bm25 import Document, Hit, SearchIndex, open_corpus, read_corpus, words
from arpo.tools.search.local import LocalSource
from arpo.tools.search.record import Found, Record, Source
from arpo.tools.search.render import NO_RESULTS, NO_SEARCH_RESULTS, render
from arpo.tools.search.tool import SearchTool

__all__ = [
    "NO_RESULTS",
    "NO_SEARCH_RESULTS",
    "Document",
    "Found",
    "Hit",
    "LocalSource",
    "Record",
    "SearchIndex",
    "SearchTool",
    "Source",
    "open_corpus",
    "read_corpus",
    "render",
    "words",
]
