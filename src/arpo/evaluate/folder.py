"""The folder of a whole evaluation: which policy it measures, and that nobody else is writing there.

    <out>/run.json               what the trajectories depend on; when and how the command was started
    <out>/<set>/                 one folder per question set (`arpo.evaluate.ledger`)
    <out>/results.json, .md      the figures, written last and anew at every end

Trajectories of different policies, limits or seeds in one folder would be averaged into a figure of nothing, so a
command that differs in any of these is refused. How answers are compared may change: see `arpo.evaluate.benchmark`.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError, DataError
from arpo.train.runfolder import storage, write_atomic

RUN, RESULTS, TABLE = "run.json", "results.json", "results.md"


@contextlib.contextmanager
def opened(path: Path, sampling: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[int]:
    """Claim the folder for this process and note a further attempt; gives its number, from 0.

    `sampling`: dotted names and plain values of what a trajectory depends on. Raises ConfigError if another process is
    in it, if it was begun with other values, or if `overwrite` is asked for what is no evaluation's folder.
    """
    with storage(path):
        path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        if overwrite:
            _clear(path)
        yield _enter(path, json.loads(json.dumps(dict(sampling))))


def _enter(path: Path, sampling: Mapping[str, Any]) -> int:
    file = path / RUN
    begun: dict[str, Any] = _read(file) if file.exists() else {"sampling": sampling, "attempts": []}
    was: dict[str, Any] = begun["sampling"]
    changed = [name for name in {**was, **sampling} if was.get(name) != sampling.get(name)]
    if changed:
        lines = "\n".join(f"  {name}: was {was.get(name)!r}, is {sampling.get(name)!r}" for name in changed)
        raise ConfigError(
            f"{path} holds an evaluation under other settings; choose another --out, replace it with --overwrite, or "
            f"undo:\n{lines}"
        )
    attempt = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "argv": sys.argv}
    with storage(file):
        write_atomic(file, json.dumps(begun | {"attempts": [*begun["attempts"], attempt]}, indent=1))
    return len(begun["attempts"])


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found | {"sampling": dict(found["sampling"]), "attempts": list(found["attempts"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: not an evaluation's ({error}); choose another --out") from error


def _clear(path: Path) -> None:
    there = [item for item in path.iterdir() if item.name != ".lock"]
    if there and not (path / RUN).exists():
        raise ConfigError(f"{path} holds no evaluation of arpo's; --overwrite will not empty it, choose another --out")
    with storage(path):
        for item in there:
            shutil.rmtree(item) if item.is_dir() else item.unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder; the system lets it go when the process ends, however it ends."""
    with storage(path):
        file = (path / ".lock").open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(f"{path} is in use by {file.read().strip() or 'another process'}; wait for it") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
