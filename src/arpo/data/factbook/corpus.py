"""The search corpus: one document per fact, and the index over them in the user's cache folder.

The index is built on first use (a second or two) and opened memory-mapped afterwards. Its folder's name holds a hash of
the documents, so another version of the data never meets an old index.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from arpo.data.factbook.facts import Fact, Facts, load_facts
from arpo.errors import DataError
from arpo.tools.search import Document, SearchIndex

_LAYOUT = "2"
"""Raise it when the same documents must be indexed anew."""


def documents(facts: Facts | None = None, *, training_only: bool = False) -> Iterator[Document]:
    """`Country | attribute: value` (title | text) for every fact.

    With `training_only`, no passage that is held out or names a held-out country.
    """
    facts = facts or load_facts()
    for fact in facts:
        if not (training_only and _betrays(facts, fact)):
            yield Document(id=fact.id, title=fact.country, text=f"{fact.attribute}: {fact.text}")


def _betrays(facts: Facts, fact: Fact) -> bool:
    """True if a passage is held out, or lists a held-out country as a neighbour."""
    named = (name for name, _ in facts.countries[fact.country].neighbours)
    return facts.heldout(fact) or any(name in facts.heldout_countries and name in fact.text for name in named)


def index_folder(*, training_only: bool = False) -> Path:
    """Where the index lives: `$XDG_CACHE_HOME/arpo/factbook-HASH` (default `~/.cache`)."""
    digest = hashlib.sha256(_LAYOUT.encode())
    for document in documents(training_only=training_only):
        digest.update(f"{document.id}\n{document.text}\n".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "arpo" / f"factbook-{digest.hexdigest()[:16]}"


def ensure_index(folder: Path | None = None, *, training_only: bool = False) -> SearchIndex:
    """Open the index, building it first where the folder does not exist.

    A folder that exists but cannot be read is a DataError, never a silent rebuild: something damaged it.
    """
    folder = folder or index_folder(training_only=training_only)
    if not folder.exists():
        return SearchIndex.build(documents(training_only=training_only), folder, "factbook")
    try:
        return SearchIndex.open(folder)
    except DataError as error:
        raise DataError(
            f"{error}\nThe factbook index is a cache: delete {folder} and run again to rebuild it"
        ) from error
