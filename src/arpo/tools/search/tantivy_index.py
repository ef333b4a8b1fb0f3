"""A tantivy index behind the same interface, for corpora that are too large for arrays of finished scores.

The words are ours (`tokens`), joined by blanks and split at blanks again, so both kinds of index find the same
documents. Queries are built word by word and never parsed: nothing that a policy writes is an operator, a field or a
syntax error. Scores are tantivy's own BM25 (k1 = 1.2, lengths kept in one byte) and differ from those of bm25s.

Ties fall back on the id. tantivy returns the first `limit` hits and says nothing of further ones with the same score,
and it sums a document's float32 scores in an order that depends on the others; so scores are rounded to five digits,
and hits are asked for until the last one is below the k-th.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from arpo.errors import ConfigError, DataError
from arpo.tools.search.bm25 import EVERY, Progress
from arpo.tools.search.corpus import Document, Hit
from arpo.tools.search.folder import new_folder, seal, verify
from arpo.tools.search.tokens import document_words, words

_HEAP = 256 << 20
"""Bytes that the writer may hold before it puts a segment on disk."""
_LOCKS = (".tantivy-writer.lock", ".tantivy-meta.lock")


def library() -> Any:
    """The module `tantivy`. Raises ConfigError naming the extra."""
    try:
        import tantivy
    except ImportError as error:
        raise ConfigError("an index of the kind tantivy needs the package: pip install 'arpo[tantivy]'") from error
    return tantivy


class TantivyIndex:
    """A read-only index folder. `build` makes one, `open` checks and maps one. May be used by several threads."""

    kind = "tantivy"

    def __init__(self, folder: Path, index: Any) -> None:
        self.folder = folder
        self._library, self._schema = library(), index.schema
        index.config_reader(reload_policy="manual")  # the folder never changes; without a thread that watches it
        self._searcher = index.searcher()

    def __len__(self) -> int:
        return self._searcher.num_docs

    @staticmethod
    def build(
        docs: Iterable[Document], folder: Path, source: str = "", *, progress: Progress = lambda _: None
    ) -> "TantivyIndex":
        """Index `docs` into `folder`, replacing an index that is there; `source` is kept in the manifest.

        Raises DataError for no documents at all or an id used twice, ConfigError without the package.
        """
        tantivy = library()
        with new_folder(folder) as scratch:
            count = _write(tantivy, docs, scratch, folder, progress)
            for name in _LOCKS:
                (scratch / name).unlink(missing_ok=True)
            seal(scratch, kind=TantivyIndex.kind, documents=count, source=source, library=_version())
        return TantivyIndex.open(folder)

    @staticmethod
    def open(folder: Path, *, full: bool = False) -> "TantivyIndex":
        """Map the index in `folder`. Raises DataError if it is missing, changed, or another version's."""
        facts = verify(folder, full=full)
        try:
            return TantivyIndex(folder, library().Index.open(str(folder)))
        except (ValueError, OSError) as error:
            raise DataError(
                f"{folder}: tantivy {_version()} cannot open it ({error}); it was built with tantivy "
                f"{facts.get('library')}: install that version, or build the index again"
            ) from error

    def query(self, text: str, k: int) -> list[Hit]:
        """The `k` best documents that share a word with `text`: highest score first, then by id."""
        asked = Counter(words(text))
        if not asked:
            return []
        query, limit = self._query(asked), k + 1
        while True:
            found = [(_rounded(score), at) for score, at in self._searcher.search(query, limit, count=False).hits]
            least = found[k - 1][0] if len(found) >= k else 0.0
            if len(found) < limit or found[-1][0] < least:
                break
            limit *= 2
        hits = [Hit(self._document(at), score) for score, at in found if score >= least]
        return sorted(hits, key=lambda hit: (-hit.score, hit.document.id))[:k]

    def _query(self, asked: Counter[str]) -> Any:
        query, should = self._library.Query, self._library.Occur.Should
        terms = []
        for word, times in asked.items():
            term = query.term_query(self._schema, "words", word, index_option="freq")
            terms.append((should, term if times == 1 else query.boost_query(term, float(times))))
        return query.boolean_query(terms)

    def _document(self, at: Any) -> Document:
        return Document(**json.loads(self._searcher.doc(at).get_first("row")))


def _rounded(score: float) -> float:
    return float(f"{score:.5g}")


def _version() -> str:
    try:
        return version("tantivy")
    except PackageNotFoundError:
        return "unknown"


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    builder.add_bytes_field("row", stored=True)
    return builder.build()


def _write(tantivy: Any, docs: Iterable[Document], scratch: Path, folder: Path, progress: Progress) -> int:
    """All files of an index but its manifest; returns the number of documents."""
    writer = tantivy.Index(_schema(tantivy), path=str(scratch)).writer(_HEAP, num_threads=1)
    marks = array("Q")
    try:
        for number, doc in enumerate(docs, 1):
            writer.add_document(_stored(tantivy, doc))
            marks.append(int.from_bytes(hashlib.blake2b(doc.id.encode(), digest_size=8).digest(), "little"))
            if number % EVERY == 0:
                progress(number)
        _check(np.frombuffer(marks, np.uint64), folder)
        writer.commit()
    finally:
        writer.wait_merging_threads()  # until then they write, also into a folder that is given up
    progress(len(marks))
    return len(marks)


def _stored(tantivy: Any, doc: Document) -> Any:
    stored = tantivy.Document()
    stored.add_text("words", " ".join(document_words(f"{doc.title} {doc.text}")))
    row = {"id": doc.id, "title": doc.title, "text": doc.text}
    stored.add_bytes("row", json.dumps(row, ensure_ascii=False).encode())
    return stored


def _check(marks: np.ndarray, folder: Path) -> None:
    """`marks`: 64-bit hashes of the ids, in the order of the documents."""
    if not len(marks):
        raise DataError(f"{folder}: cannot build a search index without documents; give it a corpus that has some")
    order = np.argsort(marks, kind="stable")
    twice = np.flatnonzero(marks[order[1:]] == marks[order[:-1]])
    if len(twice):
        one, other = order[twice[0]] + 1, order[twice[0] + 1] + 1
        raise DataError(f"{folder}: documents {one} and {other} of the corpus have the same id; make the ids unique")
