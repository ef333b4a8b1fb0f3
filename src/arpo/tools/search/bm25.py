"""BM25 over an index folder that is mapped into memory: the same answer every time, in every process, at once.

Nothing is read when an index is opened but a manifest and samples of its files (`folder`): words are looked up where
they lie on disk (`vocabulary`), scores were computed when it was built (`postings`), and a query touches the columns of
its words (`topk`) and the lines of the documents that it finds (`documents`). So processes that search one corpus share
its pages, and an index may be larger than memory. Documents lie in the order of their ids, on which equal scores fall
back.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from arpo.errors import DataError
from arpo.tools.search.corpus import Document, Hit
from arpo.tools.search.documents import Documents, DocumentsWriter
from arpo.tools.search.folder import new_folder, seal, verify
from arpo.tools.search.postings import PostingsWriter
from arpo.tools.search.tokens import document_words, words
from arpo.tools.search.topk import Scorer
from arpo.tools.search.vocabulary import Vocabulary

Progress = Callable[[int], None]
"""Told from time to time how many documents have been read."""
EVERY = 1000
"""Documents between two calls of it."""


class SearchIndex:
    """A read-only index folder. `build` makes one, `open` checks and maps one. May be used by several threads."""

    kind = "bm25s"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._documents = Documents(folder)
        self._vocabulary = Vocabulary(folder)
        self._scorer = Scorer(folder, len(self._documents))

    def __len__(self) -> int:
        return len(self._documents)

    @staticmethod
    def build(
        docs: Iterable[Document], folder: Path, source: str = "", *, progress: Progress = lambda _: None
    ) -> "SearchIndex":
        """Index `docs` into `folder`, replacing an index that is there; `source` is kept in the manifest.

        Raises DataError for no documents at all or an id used twice.
        """
        with new_folder(folder) as scratch:
            count = _write(docs, scratch, folder, progress)
            seal(scratch, kind=SearchIndex.kind, documents=count, source=source)
        return SearchIndex.open(folder)

    @staticmethod
    def open(folder: Path, *, full: bool = False) -> "SearchIndex":
        """Map the index in `folder`. Raises DataError if it is missing, truncated or changed since it was built.

        What is compared with the manifest is a sample of each file, with `full` every byte; see `folder`.
        """
        facts = verify(folder, full=full)
        if facts["kind"] != SearchIndex.kind:
            raise DataError(f"{folder}: an index of the kind {facts['kind']!r}, not {SearchIndex.kind!r}")
        return SearchIndex(folder)

    def query(self, text: str, k: int) -> list[Hit]:
        """The `k` best documents that share a word with `text`: highest score first, then by id."""
        places, scores = self._scorer.top(self.ids(text), k)
        return [Hit(self.document(place), score) for place, score in zip(places.tolist(), scores.tolist(), strict=True)]

    def ids(self, text: str) -> list[int]:
        """The columns of those words of `text` that the corpus has, in the order of the text."""
        found = (self._vocabulary.find(word) for word in words(text))
        return [place for place in found if place is not None]

    def document(self, place: int) -> Document:
        """The document at `place` in id order."""
        return self._documents[place]


def _write(docs: Iterable[Document], scratch: Path, folder: Path, progress: Progress) -> int:
    """All files of an index but its manifest; returns the number of documents."""
    store, postings = DocumentsWriter(scratch), PostingsWriter(scratch)
    try:
        for number, doc in enumerate(docs, 1):
            store.add(doc)
            postings.add(document_words(f"{doc.title} {doc.text}"))
            if number % EVERY == 0:
                progress(number)
        progress(len(store))
        postings.finish(store.finish(folder))
    finally:
        store.close()
    return len(store)
