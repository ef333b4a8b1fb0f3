"""An index folder: complete or absent, and known to be what was built.

A folder is written beside its place, sealed with a manifest of all its files, and renamed; an index cut short by a full
disk would otherwise answer, only wrongly. The manifest holds for every file its size, the sha256 of all its bytes, and
the sha256 of a sample: up to 32 blocks of 4 KiB, spread evenly, the first and the last among them.

Opening compares sizes and samples. That finds what happens to files as a whole: another file of that name, a tail that
is missing or was never written, a copy that stopped; a file of at most 128 KiB is its own sample. It costs the same for
an index of a gigabyte as for one of a megabyte, which reading everything does not: a gigabyte takes seconds in each of
the processes that open it, and evicts from the page cache what the others map. A single bit that flips in the middle of
a large file is the disk's to notice; who wants to know runs the full check (`arpo index check`, `full=True`).
Times of files say nothing about their content and change with every copy, so they are not used here.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arpo.errors import DataError

FORMAT = 2
"""Of the folder; raised when tokens or files change meaning."""
MANIFEST = "manifest.json"
_BLOCK = 4096
_BLOCKS = 32
_WHOLE = 16 << 20
"""Bytes of a corpus up to which it is hashed whole."""
_REMEDY = "build the index again, or point tools.search.corpus to a complete one"


class OldIndexError(DataError):
    """The folder is an index of another format."""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that takes its place, replacing the index there, when the block ends well.

    Raises DataError if what is there is no index: nobody's files are thrown away.
    """
    if folder.exists() and not (folder / MANIFEST).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder}: there already, and no search index; choose a folder that is not there yet")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield scratch
        _put_in_place(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with the file or folder `path` among the processes that ask here; the lock goes with its process."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _put_in_place(scratch: Path, folder: Path) -> None:
    """Move the finished index to its name; an index that is there is moved away first and then removed."""
    for path in scratch.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    scratch.chmod(0o755)
    old = scratch.with_name(scratch.name + ".old")
    with locked(folder.parent):
        if folder.exists():
            folder.rename(old)
        scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def seal(folder: Path, *, kind: str, documents: int, source: str, **facts: Any) -> None:
    """Write the manifest over all files that are in `folder` now."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digest(path), "sample": sample(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {"format": FORMAT, "kind": kind, "documents": documents, "source": source, **facts, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index of this format. Raises DataError with the remedy, OldIndexError for other formats."""
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        form, whole = facts["format"], isinstance(facts["files"], dict)
    except OSError as error:
        raise DataError(f"{folder}: no search index here ({error.strerror}); {_REMEDY}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: manifest.json of the search index is damaged; {_REMEDY}") from error
    if form != FORMAT:
        raise OldIndexError(
            f"{folder}: search index of format {form}, not {FORMAT}; build the index again from its corpus "
            f"(arpo index build CORPUS --out {folder})"
        )
    if not whole or not {"kind", "documents", "source"} <= facts.keys():
        raise DataError(f"{folder}: manifest.json of the search index is damaged; {_REMEDY}")
    return facts


def verify(folder: Path, *, full: bool = False) -> dict[str, Any]:
    """Compare all files with the manifest and return it: samples of them, or with `full` every byte.

    Raises DataError naming the file that differs.
    """
    facts = manifest(folder)
    remedy = f"delete {folder} and build the index again"
    for name, file in facts["files"].items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: missing from the search index; {remedy}")
        if path.stat().st_size != file["bytes"]:
            raise DataError(f"{path}: {path.stat().st_size} bytes, the manifest says {file['bytes']}; {remedy}")
        if sample(path) != file["sample"] or (full and digest(path) != file["sha256"]):
            raise DataError(f"{path}: content differs from what was built (sha256); {remedy}")
    return facts


def digest(path: Path) -> str:
    """sha256 of all bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample(path: Path) -> str:
    """sha256 of up to 32 evenly spread blocks of 4 KiB, in hexadecimal; of all bytes where they cover the file."""
    last = max(path.stat().st_size - _BLOCK, 0)
    picked = hashlib.sha256()
    with path.open("rb") as file:
        if last <= _BLOCK * (_BLOCKS - 1):
            return hashlib.file_digest(file, "sha256").hexdigest()
        for number in range(_BLOCKS):
            file.seek(last * number // (_BLOCKS - 1))
            picked.update(file.read(_BLOCK))
    return picked.hexdigest()


def fingerprint(path: Path) -> str:
    """What tells a corpus file from what it was: all of it up to 16 MiB; beyond, its size, time and sample.

    A large corpus would take longer to hash than its index to open; there a change that keeps the size also moves the
    time of the file.
    """
    facts = path.stat()
    if facts.st_size <= _WHOLE:
        return digest(path)
    return f"{facts.st_size} bytes, {facts.st_mtime_ns}, {sample(path)}"
