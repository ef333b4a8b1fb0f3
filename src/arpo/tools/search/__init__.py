"""Search: sources of records, and the tool that shows them to a policy."""

from arpo.tools.search.bm25 import NO_RESULTS, Document, Hit, SearchIndex, SearchTool, open_corpus, read_corpus, words

__all__ = ["NO_RESULTS", "Document", "Hit", "SearchIndex", "SearchTool", "open_corpus", "read_corpus", "words"]
