"""An index on this machine as a source of records."""

from typing import Any

from arpo.tools.search.corpus import Hit
from arpo.tools.search.folder import MANIFEST, digest
from arpo.tools.search.index import Index
from arpo.tools.search.record import Record


class LocalSource:
    """The best documents of `index`, each with its BM25 score and its id."""

    name = "local"

    def __init__(self, index: Index) -> None:
        self.index = index
        self._sha256 = digest(index.folder / MANIFEST)

    async def find(self, query: str, k: int) -> list[Record]:
        """The `k` best documents that share a word with `query`: highest score first, then by id."""
        return [_record(rank, hit) for rank, hit in enumerate(self.index.query(query, k), 1)]

    def facts(self) -> dict[str, Any]:
        """Which index, and the hash of what it was built from."""
        return {
            "source": self.name,
            "index": self.index.kind,
            "passages": len(self.index),
            "folder": str(self.index.folder),
            "sha256": self._sha256,
        }

    async def close(self) -> None:
        """The index is mapped memory; it goes with its last user."""


def _record(rank: int, hit: Hit) -> Record:
    doc = hit.document
    return Record(rank=rank, title=doc.title, snippet=doc.text, provider="local", score=hit.score, id=doc.id)
