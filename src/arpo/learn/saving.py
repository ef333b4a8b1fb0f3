"""A learner on disk: weights in Hugging Face layout, the optimiser's state, and a digest of what never changes.

Of a policy with an adapter the adapter is written and a digest of the base, which must be the same when the run goes
on. Shards are put together on the first process, weight by weight, and every process cuts its own from the whole when
it loads; so a checkpoint does not know how many processes wrote it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from arpo.engine.lora import is_adapted, load_adapter, save_weights
from arpo.engine.shards import cut, kept_state, whole
from arpo.errors import CheckpointError

STATE = "learner.pt"
_BASE = "base.json"
_VALUES = 256
"""Values of each weight that enter the digest of a base."""


def write(model: Any, state: dict[str, Any], folder: Path, tokenizer: Any, *, first: bool) -> None:
    """`state`: of the learner. Of shards, all processes call it; the `first` one writes."""
    adapted = is_adapted(model)
    weights = kept_state(model, lambda name: not adapted or ".lora_" in name)
    digest = base_digest(model) if adapted else ""
    if not first:
        return
    save_weights(model, folder, weights)
    if adapted:
        (folder / _BASE).write_text(json.dumps({"sha256": digest}))
    tokenizer.save_pretrained(folder)
    torch.save(state, folder / STATE)


def read(model: Any, folder: Path) -> dict[str, Any]:
    """Load the weights into the model; the learner's state. All processes call it, and each reads the folder.

    Raises CheckpointError if an adapter was trained on other weights than the model has.
    """
    if is_adapted(model):
        _check_base(model, folder)
        load_adapter(model, folder)
    else:
        _load(model, folder)
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return state


@torch.no_grad()
def _load(model: Any, folder: Path) -> None:
    saved = type(model).from_pretrained(folder, dtype=model.dtype).state_dict()
    for name, value in model.state_dict().items():
        value.copy_(cut(saved[name], value))


def base_digest(model: Any) -> str:
    """SHA-256 over name, shape, precision and evenly spaced values of every weight but the adapter's.

    A look at all of them would cost minutes for a large model; other weights differ almost everywhere.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            value_V = whole(weight.detach()).flatten()[:: max(1, weight.numel() // _VALUES)]
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} ".encode())
            digest.update(value_V.double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _check_base(model: Any, folder: Path) -> None:
    if json.loads((folder / _BASE).read_text())["sha256"] != base_digest(model):
        raise CheckpointError(
            f"checkpoint {folder} holds an adapter that was trained on other weights than model.path has now; give the "
            "base back that the run was started from, or start a new run"
        )
