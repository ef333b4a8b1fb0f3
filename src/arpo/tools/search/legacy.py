"""The published cache format: one JSON object from queries to the text that a policy read.

    {"Amy Smart film debut": "Page 1: The film is ...\\nPage 2: ...", "xyzzy plugh": "No search results found."}

Keys are queries without `"` and without white space at their ends; values are what the renderer "page" gives. Files
are written with `indent=2`, whole or not at all, by writers that hold `flock` on FILE.lock and keep what others wrote.
There is neither provider nor time in it, so imported entries stand under a provider of their own ("imported"), answer
for every provider that has nothing better, and are older than any time limit.

Where calls were parsed badly, transcripts got into such files. An entry whose query or text carries a prompt's or a
transcript's markup would teach it to a policy; it is left out, and the report says which and why.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo.errors import DataError, StorageError
from arpo.tools.search.cache import normalise
from arpo.tools.search.providers.adapter import text as field_text
from arpo.tools.search.record import Record
from arpo.tools.search.render import NO_SEARCH_RESULTS, render
from arpo.tools.search.store import CacheKey, Entry, Store

IMPORTED = "imported"
"""The provider of such entries."""
PAGES = "pages"
"""The format of their bodies, in `Entry.meta`."""
Readers = Mapping[str, Callable[[bytes], Sequence[Record]]]
_PREFIX = "search query: "
_LONGEST_QUERY = 1000
_MARKUP = re.compile(r"<\|[A-Za-z_]+\|>|</?(?:think|search|result|python|answer|tool_call|tool_response)>")


@dataclass(frozen=True, slots=True)
class Rejected:
    """An entry that was left out."""

    query: str
    reason: str


@dataclass(slots=True)
class Report:
    """What became of a file's entries. `taken`: entries written; `negative`: of them, those that found nothing;
    `repeated`: queries that occurred more than once (the last one counts); `kept`: entries that were in the target
    already and are not in the source.
    """

    taken: int = 0
    negative: int = 0
    kept: int = 0
    repeated: list[str] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


def imported_key(query: str) -> CacheKey:
    """Where the imported answer to `query` stands; quotation marks do not count."""
    return CacheKey(kind="search", provider=IMPORTED, text=normalise(query.replace('"', "")), raw=query)


def imported_keys(query: str, *, prefixed: bool) -> list[CacheKey]:
    """Where to look for it. `prefixed`: an entry whose query begins with `search query: ` answers as well."""
    return [imported_key(query), *([imported_key(_PREFIX + query)] if prefixed else [])]


def read_pages(text: str) -> list[Record]:
    """The records of a text `Page 1: ...\\nPage 2: ...`; a number out of turn belongs to the page before it.

    Raises DataError for any other text.
    """
    if text == NO_SEARCH_RESULTS:
        return []
    snippets: list[str] = []
    rest = text
    while rest or not snippets:
        head, following = f"Page {len(snippets) + 1}: ", f"\nPage {len(snippets) + 2}: "
        if not rest.startswith(head):
            raise DataError(f"not in the form 'Page 1: ...': {text!r:.100}")
        snippet = rest[len(head) :].partition(following)[0]
        snippets.append(field_text(snippet))
        rest = rest[len(head) + len(snippet) + 1 :]
    return [Record(rank=rank, title="", snippet=snippet, provider=IMPORTED) for rank, snippet in enumerate(snippets, 1)]


def fault(query: str, text: Any) -> str:
    """Why an entry cannot be used; empty if it can."""
    if not isinstance(text, str):
        return f"its text is of type {type(text).__name__}"
    if not query.strip():
        return "its query is empty"
    if len(query) > _LONGEST_QUERY or "\n" in query:
        return f"its query of {len(query)} characters is a piece of a transcript"
    for name, value in (("query", query), ("text", text)):
        if found := _MARKUP.search(value):
            return f"its {name} carries {found.group()!r} of a prompt or transcript"
    try:
        read_pages(text)
    except DataError as error:
        return f"its text is {error}"
    return ""


def import_file(file: Path, store: Store) -> Report:
    """Put the usable entries of `file` into `store`, all at once; those imported before are replaced.

    Raises DataError if the file is no JSON object.
    """
    report = Report()
    pairs: dict[bytes, tuple[CacheKey, Entry]] = {}
    for query, text in entries(file):
        if reason := fault(query, text):
            report.rejected.append(Rejected(query, reason))
            continue
        key = imported_key(query)
        if pairs.pop(key.digest, None) is not None:
            report.repeated.append(query)
        negative = text == NO_SEARCH_RESULTS
        pairs[key.digest] = (
            key,
            Entry(body=text.encode(errors="replace"), meta={"format": PAGES}, negative=negative, fetched_at=None),
        )
    store.put_all(list(pairs.values()))
    report.taken = len(pairs)
    report.negative = sum(entry.negative for _, entry in pairs.values())
    return report


def entries(file: Path) -> list[tuple[str, Any]]:
    """All pairs of the file's object, those with equal keys included."""
    try:
        pairs = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_Pairs)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: no JSON file in UTF-8 ({error}); it may be cut short") from error
    if not isinstance(pairs, _Pairs):
        raise DataError(f"{file}: a search cache is a JSON object from queries to texts, this is something else")
    return list(pairs)


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, so that equal keys are seen."""


def export_file(store: Store, file: Path, readers: Readers) -> Report:
    """Write the searches in `store` to `file`, over what it holds for the same queries, and keep the rest of it.

    `readers`: by provider, a function from the body of an entry to its records. Of several answers to one query the
    latest is taken. Raises DataError if the file holds something else, StorageError if it cannot be written.
    """
    report = Report()
    texts: dict[str, tuple[float, str]] = {}
    for key, entry in store.pairs():
        if key.kind == "search":
            _choose(texts, report, key, entry, readers)
    with _locked(file):
        old = dict(entries(file)) if file.exists() else {}
        new = {query: text for query, (_, text) in texts.items()}
        report.kept = len(old.keys() - new.keys())
        _write(file, {**old, **new})
    report.taken, report.negative = len(new), sum(text == NO_SEARCH_RESULTS for text in new.values())
    return report


def _choose(texts: dict[str, tuple[float, str]], report: Report, key: CacheKey, entry: Entry, readers: Readers) -> None:
    query = (key.raw or key.text).replace('"', "").strip()
    if entry.meta.get("format") == PAGES:
        text = entry.body.decode()
    elif key.provider in readers:
        text = render(readers[key.provider](entry.body), "page")
    else:
        report.rejected.append(Rejected(query, f"its provider {key.provider!r} is not known"))
        return
    if reason := fault(query, text):
        report.rejected.append(Rejected(query, reason))
        return
    if query in texts:
        report.repeated.append(query)
    if query not in texts or (entry.fetched_at or 0.0) >= texts[query][0]:
        texts[query] = (entry.fetched_at or 0.0, text)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock that all writers of such files take."""
    try:
        lock = file.with_name(file.name + ".lock").open("a")
    except OSError as error:
        raise StorageError(f"{file}: cannot be written here ({error.strerror})") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, texts: Mapping[str, str]) -> None:
    scratch = file.with_suffix(".tmp")
    try:
        with scratch.open("w", encoding="utf-8") as target:
            json.dump(texts, target, indent=2, ensure_ascii=False)
            target.flush()
            os.fsync(target.fileno())
        scratch.replace(file)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"{file}: cannot be written ({error.strerror}); what was there is unchanged") from error
