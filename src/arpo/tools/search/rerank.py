"""Ordering what an index found by meaning: the cosine of embeddings of the query and of each candidate.

BM25 finds what shares words and orders it by how rare they are; a small embedding model knows that a question about the
"tallest" wants a passage about "height". Embedding a whole corpus takes half an hour per 100,000 passages on a core,
embedding some candidates well under a second, and passages that come up again are remembered.

Texts are embedded one by one. In a batch the shapes of the others, and so the last bits of a text's own numbers, depend
on what it is with; near ties would then fall by what was remembered and what was not. On a CPU, where padding a batch
costs as much as it saves, this is hardly slower.
"""

import asyncio
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from arpo.errors import ToolSetupError
from arpo.tools.limits import Turns
from arpo.tools.running import off_the_clock
from arpo.tools.search.record import Record, Source

_REMEMBERED = 20_000
"""Passages whose embeddings are kept, those used last; about 1.5 KB each for 384 numbers."""


class Encoder(Protocol):
    """Texts to vectors of unit length, float32 `[dimensions]`; equal texts give equal vectors."""

    name: str

    def query(self, text: str) -> np.ndarray: ...

    def passage(self, text: str) -> np.ndarray: ...


class SentenceEncoder:
    """A sentence-transformers model in a folder; its own prompts for queries and passages are used."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Raises ToolSetupError if the package or the folder is missing, or the folder holds no such model."""
        self.name = str(folder)
        if not folder.is_dir():
            raise ToolSetupError(
                f"tools.search.rerank.model = {str(folder)!r} is no folder; it must hold a sentence-transformers model "
                "(nothing is downloaded)"
            )
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ToolSetupError(
                f"re-ranking needs sentence-transformers ({error}): pip install 'arpo[rerank]'"
            ) from error
        try:
            self._model: Any = SentenceTransformer(str(folder), device=device, local_files_only=True)
        except Exception as error:  # whatever a broken folder makes of three libraries
            raise ToolSetupError(
                f"tools.search.rerank.model = {str(folder)!r} cannot be loaded ({type(error).__name__}: {error}); it "
                "must hold a sentence-transformers model"
            ) from error

    def query(self, text: str) -> np.ndarray:
        return self._model.encode_query(text, normalize_embeddings=True, show_progress_bar=False)

    def passage(self, text: str) -> np.ndarray:
        return self._model.encode_document(text, normalize_embeddings=True, show_progress_bar=False)


class RerankedSource:
    """The best of `candidates` records of `source` by the cosine of embeddings, which becomes their score.

    Equal ones stay in the order of the source. Calls wait for each other, off their clocks: the model computes one text
    at a time.
    """

    def __init__(self, source: Source, encoder: Encoder, candidates: int) -> None:
        self.name = source.name
        self.source, self.encoder, self.candidates = source, encoder, candidates
        self._turns = Turns(1)
        self._alone = threading.Lock()
        self._passages: OrderedDict[str, np.ndarray] = OrderedDict()

    async def find(self, query: str, k: int) -> list[Record]:
        """The `k` best. Raises what the source raises."""
        records = await self.source.find(query, max(k, self.candidates))
        if not records:
            return []
        with off_the_clock():
            await self._turns.enter()
        try:
            scores = await asyncio.to_thread(self._scores, query, records)
        finally:
            self._turns.leave()
        order = sorted(range(len(records)), key=lambda at: (-scores[at], at))[:k]
        return [replace(records[at], rank=rank, score=scores[at]) for rank, at in enumerate(order, 1)]

    def _scores(self, query: str, records: list[Record]) -> list[float]:
        with self._alone:  # a call that was given up may still be at it
            asked = self.encoder.query(query)
            return [float(asked @ self._passage(record)) for record in records]

    def _passage(self, record: Record) -> np.ndarray:
        text = f"{record.title}\n{record.snippet}" if record.title else record.snippet
        vector = self._passages.pop(text, None)
        if vector is None:
            vector = self.encoder.passage(text)
            if len(self._passages) >= _REMEMBERED:
                self._passages.popitem(last=False)
        self._passages[text] = vector
        return vector

    def facts(self) -> dict[str, Any]:
        """What the source says, the model and the number of candidates."""
        ask = getattr(self.source, "facts", dict)
        return {**ask(), "rerank": {"model": self.encoder.name, "candidates": self.candidates}}

    async def close(self) -> None:
        """Close the source."""
        await self.source.close()
