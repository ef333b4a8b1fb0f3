"""The file behind a cache: one SQLite database in WAL mode, many readers, writers one after another.

Readers never wait for writers, and a process that is killed in the middle of a write leaves the database as it was
before it. Every row carries a hash of its content, checked when it is read. Connections belong to a process: after a
fork the child opens its own, since SQLite's must not be carried over. WAL needs shared memory, so the file must lie on
a local disk, not on a network file system.

A database opened `readonly` is never changed, and may lie in a folder where nothing can be written.
"""

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from arpo.errors import DataError, StorageError

FORMAT = 1
"""Of the tables; raised when they change."""
APPLICATION = 0x4152504F
"""Marks the file as one of ours ("ARPO")."""
_WAIT = 30.0
"""Seconds to wait for another process that writes."""
_TABLE = """
CREATE TABLE IF NOT EXISTS entries (
    digest BLOB PRIMARY KEY, kind TEXT NOT NULL, provider TEXT NOT NULL, params TEXT NOT NULL, version INTEGER NOT NULL,
    text TEXT NOT NULL, raw TEXT NOT NULL, body BLOB NOT NULL, meta TEXT NOT NULL, negative INTEGER NOT NULL,
    fetched_at REAL, content BLOB NOT NULL
)"""
_PARENTS: list[sqlite3.Connection | None] = []
"""Connections that came here by a fork: neither used nor closed, since either would touch the parent's locks."""
_T = TypeVar("_T")


def canonical(value: Any) -> str:
    """JSON that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """What an entry answers. Two keys are the same if all but `raw` is equal.

    `kind`: of thing looked up ("search", "page"). `provider`: who answers. `params`: everything else that shapes the
    answer, as JSON values, and no secret. `version`: of the code that reads the entry. `text`: normalised query or
    address; `raw`: as it was asked (default: `text`).
    """

    kind: str
    provider: str
    text: str
    raw: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON of all that counts."""
        parts = [self.kind, self.provider, dict(self.params), self.version, self.text]
        return hashlib.sha256(canonical(parts).encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An answer as it came. `body`: the raw response. `meta`: what reading it needs, as JSON values. `negative`: it
    says that there is nothing. `fetched_at`: seconds since 1970; None: unknown, so older than any limit.
    """

    body: bytes
    meta: Mapping[str, Any] = field(default_factory=dict)
    negative: bool = False
    fetched_at: float | None = field(default_factory=time.time)

    def content(self, digest: bytes) -> bytes:
        """SHA-256 of what it answers to `digest`; when it was fetched does not count."""
        head = canonical([dict(self.meta), self.negative]).encode()
        return hashlib.sha256(digest + hashlib.sha256(head).digest() + self.body).digest()


class Store:
    """Entries by key. Usable from several threads; calls take a fraction of a millisecond and block."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        """Open or create. DataError if the file is none of ours or, `readonly`, not there."""
        self.path = path
        self.readonly = readonly
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._run(lambda connection: None)

    def get(self, key: CacheKey) -> Entry | None:
        """The entry, or None. DataError if the row is damaged."""
        digest = key.digest
        query = "SELECT body, meta, negative, fetched_at, content FROM entries WHERE digest = ?"
        row = self._run(lambda connection: connection.execute(query, (digest,)).fetchone())
        return None if row is None else self._entry(digest, row)

    def _entry(self, digest: bytes, row: tuple[Any, ...]) -> Entry:
        body, meta, negative, fetched_at, content = row
        try:
            entry = Entry(body=bytes(body), meta=json.loads(meta), negative=bool(negative), fetched_at=fetched_at)
            if entry.content(digest) == content:
                return entry
        except (ValueError, TypeError) as error:
            raise DataError(f"{self.path}: a damaged entry ({error}); {_REMEDY}") from error
        raise DataError(f"{self.path}: a damaged entry (its content is not what was stored); {_REMEDY}")

    def put(self, key: CacheKey, entry: Entry) -> None:
        """Store or replace. StorageError if the disk refuses."""
        self.put_all([(key, entry)])

    def put_all(self, pairs: list[tuple[CacheKey, Entry]]) -> None:
        """Store or replace all of them, or none."""
        rows = [_row(key, entry) for key, entry in pairs]
        insert = f"INSERT OR REPLACE INTO entries VALUES ({','.join('?' * 12)})"

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany(insert, rows)

        self._run(write)

    def pairs(self) -> Iterator[tuple[CacheKey, Entry]]:
        """All entries, in the order in which they were stored."""
        last = -1
        while rows := self._page(last):
            for _, digest, kind, provider, params, version, text, raw, *rest in rows:
                key = CacheKey(
                    kind=kind, provider=provider, text=text, raw=raw, params=json.loads(params), version=version
                )
                yield key, self._entry(digest, tuple(rest))
            last = rows[-1][0]

    def _page(self, last: int) -> list[tuple[Any, ...]]:
        """Some of the rows after row `last`."""
        columns = "digest, kind, provider, params, version, text, raw, body, meta, negative, fetched_at, content"
        select = f"SELECT rowid, {columns} FROM entries WHERE rowid > ? ORDER BY rowid LIMIT 500"
        return self._run(lambda connection: connection.execute(select, (last,)).fetchall())

    def content_hash(self) -> str:
        """One hash of all answers, whatever the order in which they came and whenever they were fetched."""
        total = hashlib.sha256()

        def read(connection: sqlite3.Connection) -> None:
            for digest, content in connection.execute("SELECT digest, content FROM entries ORDER BY digest"):
                total.update(digest + content)

        self._run(read)
        return total.hexdigest()

    def contents(self) -> list[dict[str, Any]]:
        """Per kind and provider: entries, how many of them are negative, bytes, oldest and newest (or None)."""
        select = (
            "SELECT kind, provider, count(*), sum(negative), sum(length(body)), min(fetched_at), max(fetched_at) "
            "FROM entries GROUP BY kind, provider ORDER BY kind, provider"
        )
        names = ("kind", "provider", "entries", "negative", "bytes", "oldest", "newest")
        rows = self._run(lambda connection: connection.execute(select).fetchall())
        return [dict(zip(names, row, strict=True)) for row in rows]

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._process != os.getpid():
                _PARENTS.append(self._connection)
            elif self._connection is not None:
                self._connection.close()
            self._connection, self._process = None, os.getpid()

    def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._lock:
            try:
                if self._process != os.getpid():
                    _PARENTS.append(self._connection)
                    self._connection, self._process = None, os.getpid()
                if self._connection is None:
                    self._connection = self._open()
                return work(self._connection)
            except sqlite3.Error as error:
                raise _told(self.path, error) from error

    def _open(self) -> sqlite3.Connection:
        if self.readonly:
            return self._open_readonly()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path}: the folder of the cache cannot be made ({error.strerror})") from error
        connection = sqlite3.connect(self.path, timeout=_WAIT, check_same_thread=False)
        try:
            if not _is_cache(self.path, connection, new=True):
                _make(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_readonly(self) -> sqlite3.Connection:
        """Where nothing may be written beside the file, it cannot change either, and is read as it stands."""
        log = self.path.with_name(self.path.name + "-wal")
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such cache, and read_only makes none; name one that was filled before")
        fixed = not os.access(self.path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
        address = f"{self.path.resolve().as_uri()}?{'immutable=1' if fixed else 'mode=ro'}"
        connection = sqlite3.connect(address, uri=True, timeout=_WAIT, check_same_thread=False)
        try:
            _is_cache(self.path, connection, new=False)
        except BaseException:
            connection.close()
            raise
        return connection


def _row(key: CacheKey, entry: Entry) -> tuple[Any, ...]:
    digest, raw = key.digest, key.text if key.raw is None else key.raw
    return (
        digest,
        key.kind,
        key.provider,
        canonical(dict(key.params)),
        key.version,
        *(text.encode("utf-8", "backslashreplace").decode() for text in (key.text, raw)),
        entry.body,
        canonical(dict(entry.meta)),
        int(entry.negative),
        entry.fetched_at,
        entry.content(digest),
    )


def _is_cache(path: Path, connection: sqlite3.Connection, *, new: bool) -> bool:
    """Whether it is one. DataError for anything else; where it may be `new`, an empty file is no error."""
    marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if new and not tables and marks == [0, 0]:
        return False
    if marks[0] != APPLICATION:
        raise DataError(f"{path}: a database, but not a cache of arpo; give the cache another path")
    if marks[1] != FORMAT:
        raise DataError(f"{path}: a cache of format {marks[1]}, not {FORMAT}; give the cache another path")
    return True


def _make(connection: sqlite3.Connection) -> None:
    """Turn an empty file into a cache, all at once; of several processes that try, the others find it done."""
    connection.execute("PRAGMA journal_mode = WAL")
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_TABLE)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


_REMEDY = (
    "move it away together with its -wal and -shm files; what can be read may be saved with "
    "`sqlite3 FILE .recover`, and a new file is made by the next run"
)


def _told(path: Path, error: sqlite3.Error) -> DataError | StorageError:
    """What SQLite says, as an error that names the file and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DataError(f"{path}: the cache is damaged or no SQLite database ({error}); {_REMEDY}")
    if code == sqlite3.SQLITE_FULL:
        return StorageError(f"{path}: no space left to store a result; free some space. What is stored is intact")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StorageError(
            f"{path}: the cache cannot be opened or written ({error}); make it writable, or set the cache's "
            'mode = "read_only"'
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(f"{path}: another process has locked the cache for more than {_WAIT:g} s; end it")
    return StorageError(f"{path}: the cache failed ({error})")
