"""The run folder: what a run leaves behind, and the rules that keep it whole.

    runs/<name>/{config.toml, run.json, metrics.jsonl, rollouts/*.parquet, checkpoints/step_N/, report.html}

Order of writes in a step: rollouts, then the metrics row, then the checkpoint. A process killed anywhere in between is
resumed from the last whole checkpoint; rows and rollouts of later steps are then dropped, because those steps are
run again. So at most the steps since that checkpoint are lost, and no step has two rows.
"""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import tomli_w

from arpo.errors import ConfigError, StorageError

_JUDGE = ("base_url", "key_env", "concurrency", "timeout", "retries", "breaker", "cache")
"""Where and how a judge is asked, which changes no verdict."""
MAY_CHANGE = (
    *("run.", "train.steps", "train.max_", "train.trackers", "train.checkpoint_every", "train.keep_checkpoints"),
    *("train.processes", "train.sharded", "engine.base_url", "engine.replicas", "engine.publish_folder"),
    *(f"reward.judge.{name}" for name in _JUDGE),
)
"""Keys that a resumed run may set anew; any other difference is refused."""

_OURS = ("config.toml", "run.json")
_LIBRARIES = ("torch", "transformers", "tokenizers", "peft", "trl", "numpy", "bm25s", "pydantic-monty", "pyarrow")
_PACKAGES = ("arpo", *_LIBRARIES)


class RunFolder:
    """An open run folder; hold it for the life of the run (it is locked against a second process)."""

    def __init__(self, path: Path, lock: TextIO | None = None) -> None:
        """`lock`: as `open` took it; None in the other processes of a team, whose first one writes."""
        self.path = path
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        reward: Mapping[str, Any] | None = None,
    ) -> "RunFolder":
        """Create, resume or replace the folder at `path`.

        `tools`: what stands behind each tool now (sandbox, versions, hashes), `reward`: who compares answers (judge,
        hash of its prompt); both kept in run.json with this attempt.

        Raises ConfigError if it exists and neither `resume` nor `overwrite` is set, if another process is using it, or
        if it was started with another configuration.
        """
        if resume and overwrite:
            raise ConfigError("--resume continues a run and --overwrite deletes it: give one of them")
        if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
            _claim(path, resume=resume, overwrite=overwrite)
        with storage(path):
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, _locked(path))
            folder._describe(config, {"tools": dict(tools or {}), "reward": dict(reward or {})})
            folder.rollouts.mkdir(exist_ok=True)
        return folder

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def rollout_file(self, step: int) -> Path:
        return self.rollouts / f"step_{step:06d}.parquet"

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one metrics row, on disk before this returns."""
        line = json.dumps(row, allow_nan=False) + "\n"
        with storage(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, step: int) -> None:
        """Drop what was written after `step`: rows, torn lines and rollouts of steps that will be run again."""
        rows = [row for row in read_rows(self.metrics) if row["step"] <= step]
        with storage(self.metrics):
            write_atomic(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
            for file in self.rollouts.glob("step_*.parquet"):
                if int(file.stem.removeprefix("step_")) > step:
                    file.unlink()

    def _describe(self, config: Mapping[str, Any], used: Mapping[str, Any]) -> None:
        """Write config.toml and run.json, or check them against a run that is continued."""
        config_file, run_file = self.path / "config.toml", self.path / "run.json"
        plain = without_none(config)
        if config_file.exists():
            _same_config(config_file, plain)
        write_atomic(config_file, tomli_w.dumps(plain))
        earlier = json.loads(run_file.read_text()) if run_file.exists() else {"attempts": []}
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        attempt = {"started": started, "pid": os.getpid(), "argv": sys.argv, **used}
        facts = {
            "packages": _versions(),
            "git": _revision(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        }
        write_atomic(run_file, json.dumps(facts | {"attempts": [*earlier["attempts"], attempt]}, indent=1))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_folder(path: Path, config: Mapping[str, Any], *, resume: bool = False, overwrite: bool = False) -> None:
    """Raise the ConfigError that `RunFolder.open` would for what stands there now, and touch nothing."""
    if not path.exists() or not any(path.iterdir() if path.is_dir() else [path]):
        return
    _refuse(path, resume=resume, overwrite=overwrite)
    if resume and (path / "config.toml").exists():
        _same_config(path / "config.toml", without_none(config))


def _claim(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Decide what happens to a folder that is already there."""
    _refuse(path, resume=resume, overwrite=overwrite)
    if overwrite:
        with contextlib.closing(_locked(path)):
            shutil.rmtree(path)


def _refuse(path: Path, *, resume: bool, overwrite: bool) -> None:
    if resume:
        return
    if not overwrite:
        raise ConfigError(
            f"run folder {path} exists: continue it with --resume, replace it with --overwrite, "
            "or choose another name with run.name=..."
        )
    if not path.is_dir() or not any((path / name).exists() for name in (*_OURS, "summary.json")):
        raise ConfigError(f"{path} exists and is not a run folder of arpo's; --overwrite will not delete it")


def _locked(path: Path) -> TextIO:
    """Take the folder's lock; the system releases it when the process ends, however it ends."""
    file = (path / ".lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise ConfigError(f"run folder {path} is in use by {holder}; wait for it or choose another run.name") from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file


def _same_config(file: Path, config: Mapping[str, Any]) -> None:
    """Refuse to continue a run under a configuration that would make it another run."""
    old, new = flatten(tomllib.loads(file.read_text())), flatten(config)
    changed = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k) and not k.startswith(MAY_CHANGE)]
    if changed:
        lines = "\n".join(f"  {k}: was {old.get(k)!r}, is {new.get(k)!r}" for k in changed)
        raise ConfigError(f"{file} was written under another configuration; start a new run or undo:\n{lines}")


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one level of dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def without_none(value: Any) -> Any:
    """TOML has no null: an unset option is an absent key."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The metrics rows in step order, the last of each step; a torn last line is skipped."""
    rows: dict[int, dict[str, Any]] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                rows[row["step"]] = row
    return [rows[step] for step in sorted(rows)]


def write_atomic(file: Path, text: str) -> None:
    """Replace a small file in one step: readers see the old text or the new, never a part."""
    draft = file.with_name(f".{file.name}.tmp")
    with draft.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn a refused write into an error that names the place; what stood there before is intact."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}. Earlier files are intact; "
            "free some space or fix the permissions, then run again with --resume"
        ) from error


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _revision() -> str | None:
    """The git revision of the code that runs, if it runs from a checkout."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
