"""Search: sources of records, and the tool that shows them to a policy."""

from arpo.tools.search.bm25 import SearchIndex
from arpo.tools.search.corpus import Document, Hit, read_corpus
from arpo.tools.search.index import Index, build_index, open_corpus, open_index
from arpo.tools.search.local import LocalSource
from arpo.tools.search.record import Found, Record, Source
from arpo.tools.search.render import NO_RESULTS, NO_SEARCH_RESULTS, render
from arpo.tools.search.tokens import words
from arpo.tools.search.tool import SearchTool

__all__ = [
    "NO_RESULTS",
    "NO_SEARCH_RESULTS",
    "Document",
    "Found",
    "Hit",
    "Index",
    "LocalSource",
    "Record",
    "SearchIndex",
    "SearchTool",
    "Source",
    "build_index",
    "open_corpus",
    "open_index",
    "read_corpus",
    "render",
    "words",
]
