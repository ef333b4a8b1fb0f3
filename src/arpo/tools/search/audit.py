"""Whether an index is what was built, and answers as it should: every byte, and searches held against bm25s.

The searches go the long way in the library of that name: all documents scored, the best picked. Ours must give the same
documents, in the same order, with the same scores to the bit.
"""

from pathlib import Path

from arpo.errors import DataError
from arpo.tools.search.bm25 import SearchIndex
from arpo.tools.search.index import Index, open_index
from arpo.tools.search.tokens import words
from arpo.tools.search.topk import best_places

_SEARCHES, _WORDS, _TOP_K = 32, 12, 10


def audit(folder: Path) -> tuple[Index, int]:
    """The index and the number of searches that were compared (0 for tantivy). Raises DataError for what is wrong."""
    index = open_index(folder, full=True)
    return index, _compare(index) if isinstance(index, SearchIndex) else 0


def _compare(index: SearchIndex) -> int:
    import bm25s

    reference = bm25s.BM25.load(index.folder, mmap=True, load_vocab=False, show_progress=False)
    places = sorted({len(index) * number // _SEARCHES for number in range(_SEARCHES)})
    for place in places:
        query = " ".join(words(index.document(place).line)[:_WORDS])
        scores_D = reference.get_scores_from_ids(sorted(index.ids(query)))
        best = [at for at in best_places(scores_D, _TOP_K).tolist() if scores_D[at] > 0]
        expected = [(index.document(at).id, float(scores_D[at])) for at in best]
        if expected != [(hit.document.id, hit.score) for hit in index.query(query, _TOP_K)]:
            raise DataError(
                f"{index.folder}: a search for {query!r} finds other documents than bm25s does; build the index again"
            )
    return len(places)
