"""Checkpoints that a kill, a full disk or a flipped bit cannot lose.

A checkpoint is a folder `step_N` that the caller fills (model and tokenizer in Hugging Face layout, optimiser,
position). It is written under a hidden name, flushed to the disk, described by `manifest.json` (SHA-256 and size of
every file) and only then renamed; so a folder called `step_N` was complete once, and the manifest shows whether it
still is. `latest` names the newest for people and other programs; loading does not trust it, it takes the newest folder
that verifies. Older checkpoints are removed only after a newer one is safe.

One process writes to a root at a time (the run folder's lock sees to that). Loading changes nothing: others may read.
"""

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arpo.errors import CheckpointError, StorageError

MANIFEST = "manifest.json"
_PREFIX = "step_"
_WRITING, _REPLACED, _REMOVED = ".writing-", ".replaced-", ".removed-"
_PROBE_BYTES = 1 << 20

Say = Callable[[str], None]


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], keep: int) -> Path:
    """Let `write` fill a folder and make it `root/step_<step>` in one move; then keep the `keep` newest.

    A checkpoint of the same step is replaced. Raises StorageError if the disk refuses (full, quota, read-only): what
    was saved before is intact and the half-written folder is gone.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least the newest checkpoint must stay")
    final, draft = root / f"{_PREFIX}{step}", root / f"{_WRITING}{_PREFIX}{step}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _tidy(root)
        draft.mkdir()
        write(draft)
        _seal(draft, step)
        _put(draft, final)
        _point(root, final.name)
    except Exception as error:
        refusal = _refusal(error, draft)
        shutil.rmtree(draft, ignore_errors=True)
        if refusal is None:
            raise
        raise StorageError(_refused(root, final, refusal)) from error
    _prune(root, keep)
    return final


def load_latest(root: Path, *, tokenizer: Any = None, say: Say = warnings.warn) -> tuple[int, Path] | None:
    """(step, folder) of the newest checkpoint that verifies; None if there is none at all.

    `say` is told of every newer one that had to be passed over, and why. With `tokenizer` (transformers), a checkpoint
    that was written for another one is refused. Raises CheckpointError for that, and if none of those present verifies.
    """
    broken: list[str] = []
    for step, folder in _newest_first(root):
        fault = verify(folder)
        if fault is None:
            for message in broken:
                say(f"{message}; going back to {folder.name}")
            if tokenizer is not None:
                check_tokenizer(folder, tokenizer)
            return step, folder
        broken.append(f"checkpoint {folder} is corrupt: {fault}")
    if broken:
        raise CheckpointError(
            "; ".join(broken) + ". No usable checkpoint is left: start again with --overwrite, or restore a copy"
        )
    return None


def verify(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None: every file of the manifest is there with its size and hash."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_bytes())["files"]
        for name, expected in files.items():
            if (folder / name).stat().st_size != expected["size"]:
                return f"{name} has {(folder / name).stat().st_size} bytes, not {expected['size']}"
            if _digest(folder / name) != expected["sha256"]:
                return f"{name} does not have the content that was saved"
    except OSError as error:
        return f"{Path(str(error.filename)).name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not a manifest"
    return None


def fingerprint(tokenizer: Any) -> str:
    """SHA-256 over a tokenizer's vocabulary, added tokens included, and its special tokens."""
    facts = [sorted(tokenizer.get_vocab().items()), sorted(tokenizer.special_tokens_map.items())]
    return hashlib.sha256(json.dumps(facts, ensure_ascii=False, default=str).encode()).hexdigest()


def check_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Raise CheckpointError unless the checkpoint's tokenizer is `tokenizer`: its token ids would mean other words."""
    from transformers import AutoTokenizer

    saved = AutoTokenizer.from_pretrained(folder)
    if fingerprint(saved) != fingerprint(tokenizer):
        raise CheckpointError(
            f"checkpoint {folder} belongs to another tokenizer ({len(saved)} tokens there, {len(tokenizer)} here, or "
            "other ids or special tokens): continue with the model it was trained from, or start a new run"
        )


def _newest_first(root: Path) -> list[tuple[int, Path]]:
    """Checkpoints by step. One that was set aside by a replacement that never came counts under its old name."""
    found: dict[str, Path] = {}
    for prefix in (_REPLACED + _PREFIX, _PREFIX):
        found |= {folder.name.removeprefix(prefix): folder for folder in root.glob(f"{prefix}*")}
    return sorted(((int(number), folder) for number, folder in found.items() if number.isdecimal()), reverse=True)


def _tidy(root: Path) -> None:
    """Finish what a killed process left: put a checkpoint back that was being replaced, drop drafts."""
    for folder in root.glob(f"{_REPLACED}*"):
        final = root / folder.name.removeprefix(_REPLACED)
        if not final.exists():
            os.rename(folder, final)
    for prefix in (_WRITING, _REPLACED, _REMOVED):
        for folder in root.glob(f"{prefix}*"):
            shutil.rmtree(folder)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(folder: Path, step: int) -> None:
    """Flush everything in a folder to the disk and write its manifest."""
    files = {
        path.relative_to(folder).as_posix(): {"sha256": _digest(path), "size": path.stat().st_size}
        for path in _files(folder)
    }
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "step": step, "files": files}, indent=1))
    for path in _files(folder):
        _flush(path)
    for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put(draft: Path, final: Path) -> None:
    """Rename `draft` to `final`; one that is there steps aside first, so at no moment is there neither."""
    aside = final.with_name(_REPLACED + final.name)
    if final.exists():
        os.rename(final, aside)
    os.rename(draft, final)
    _flush(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _point(root: Path, name: str) -> None:
    """Make `latest` say `name`, atomically."""
    draft = root / f"{_WRITING}latest"
    draft.mkdir(exist_ok=True)
    (draft / "latest").write_text(name + "\n")
    _flush(draft / "latest")
    os.replace(draft / "latest", root / "latest")
    draft.rmdir()
    _flush(root)


def _prune(root: Path, keep: int) -> None:
    """Remove all but the `keep` newest. A folder is renamed first, so that it is never half there."""
    for _, folder in _newest_first(root)[keep:]:
        removed = folder.with_name(_REMOVED + folder.name)
        os.rename(folder, removed)
        shutil.rmtree(removed)


def _refusal(error: BaseException, draft: Path) -> OSError | None:
    """The operating system's refusal behind an error, if there is one.

    Writers outside Python report a full disk in words of their own; whether it is full is then asked of the disk.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause
        cause = cause.__cause__ or cause.__context__
    try:
        (draft / ".probe").write_bytes(bytes(_PROBE_BYTES))
    except OSError as refused:
        return refused
    return None


def _refused(root: Path, final: Path, refusal: OSError) -> str:
    whole = [folder.name for _, folder in _newest_first(root)]
    kept = f"Earlier checkpoints are intact ({', '.join(whole)})" if whole else "There is no earlier checkpoint"
    full = refusal.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space" if full else "mend the folder or its permissions"
    return f"cannot save {final}: {os.strerror(refusal.errno or 0)}. {kept}; {remedy} and run again with --resume"
