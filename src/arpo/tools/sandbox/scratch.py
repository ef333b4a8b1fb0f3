"""Folders on the host in which runs of the Landlock rung work, and that none of them outlives its use.

The loader holds a lock on its folder as long as it lives, however it ends; who finds such a folder without a lock may
clear it away. What is in it was made by sandboxed code: it is removed without following a link, and flattened on the
way, so that neither depth nor permissions stop it.
"""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

_PREFIX = "arpo-sandbox-"


def create(parent: str, uid: int, gid: int) -> tuple[str, int]:
    """A new folder for that user below `parent`, and the descriptor that locks it. Raises OSError."""
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    os.chown(folder, uid, gid)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, descriptor


def clear_stale(parent: str, owners: set[int]) -> list[str]:
    """Remove folders of loaders that are gone; their paths."""
    removed = []
    for path in Path(parent).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid in owners and path.is_dir() and not path.is_symlink() and _unlocked(path):
                remove(str(path))
                removed.append(str(path))
    return removed


def _unlocked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove(folder: str) -> None:
    """The folder and all in it. What cannot be removed is left. No link is followed."""
    count = 0
    while True:
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
        inner = _empty(folder)
        if not inner:
            break
        for name in inner:  # what is in a folder within moves up, until no folder has one
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)
            for deeper in _empty(path):
                count += 1
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(path, deeper), 0o700)
                    os.rename(os.path.join(path, deeper), os.path.join(folder, f"moved-{os.getpid()}-{count}"))
            with contextlib.suppress(OSError):
                os.rmdir(path)
        if _empty(folder) == inner:
            break  # nothing moves any more
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _empty(folder: str) -> list[str]:
    """Remove what is no folder; the names of the folders that are left."""
    left = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            left.append(entry.name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
    return left


def size_mb(folder: str, most_entries: int = 20000) -> float:
    """MiB on disk of all files; infinite where there is more to count than entries, or a path too long to look at."""
    total = 0
    ahead = [folder]
    count = 0
    while ahead:
        try:
            entries = list(os.scandir(ahead.pop()))
        except FileNotFoundError:
            continue
        except OSError:
            return float("inf")
        count += len(entries)
        if count > most_entries:
            return float("inf")
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
            except OSError:
                return float("inf")
            if entry.is_dir(follow_symlinks=False):
                ahead.append(entry.path)
    return total / (1 << 20)
