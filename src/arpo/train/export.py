"""From a checkpoint to a model folder that any reader of transformers models takes.

A checkpoint holds what a run needs to go on, and of a run with an adapter nothing of the base. What leaves the run
folder is whole and plain: merged weights, configuration, tokenizer. It is written under a hidden name and renamed when
it is complete, so a folder called `out` was never half a model.
"""

import os
import shutil
import tomllib
from pathlib import Path

from arpo.engine.models import load_policy
from arpo.errors import CheckpointError, ConfigError
from arpo.learn.checkpoint import load_latest, verify
from arpo.train.runfolder import storage


def export(run: Path, out: Path, *, step: int | None = None, dtype: str | None = None) -> Path:
    """Write the policy of the checkpoint of `step` (None: the newest that is whole) to the new folder `out`; `out`.

    `dtype`: a torch dtype's name; None takes what the run trained in. Raises ConfigError if `run` is no run folder or
    `out` exists, CheckpointError if there is no such checkpoint.
    """
    if not (run / "config.toml").is_file():
        raise ConfigError(f"{run} is not a run folder (it has no config.toml); give the folder of a run, runs/NAME")
    if out.exists():
        raise ConfigError(f"{out} exists and will not be overwritten; give --out another name or remove it")
    folder = _checkpoint(run / "checkpoints", step)
    model, tokenizer = load_policy(folder, dtype=dtype or _dtype(run), device="cpu")
    draft = out.with_name(f".{out.name}.writing-{os.getpid()}")
    with storage(out):
        draft.mkdir(parents=True)
        try:
            model.save_pretrained(draft)
            tokenizer.save_pretrained(draft)
            draft.rename(out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return out


def _dtype(run: Path) -> str:
    model = tomllib.loads((run / "config.toml").read_text(encoding="utf-8")).get("model", {})
    return str(model.get("dtype", "float32"))


def _checkpoint(root: Path, step: int | None) -> Path:
    if step is None:
        newest = load_latest(root)
        if newest is None:
            raise CheckpointError(f"{root} holds no checkpoint yet; train for a step first")
        return newest[1]
    folder = root / f"step_{step}"
    if not folder.is_dir():
        there = sorted(int(found.name.removeprefix("step_")) for found in root.glob("step_*"))
        raise CheckpointError(f"{folder} does not exist; checkpoints here: {', '.join(map(str, there)) or 'none'}")
    fault = verify(folder)
    if fault is not None:
        raise CheckpointError(f"checkpoint {folder} is corrupt: {fault}; choose another --step")
    return folder
