"""Where a run stands, and how it is put on disk and taken up again.

A checkpoint holds all that a step depends on: the policy and its tokenizer in Hugging Face layout, the optimiser, and
the position (step, task cursor, what was spent). Of a policy with an adapter it holds the adapter and a digest of the
base, which never changes and must be the same when the run goes on. Draws depend on the seed and the position alone, so
that is all.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arpo.engine.lora import is_adapted, load_adapter, save_weights
from arpo.errors import CheckpointError
from arpo.learn.checkpoint import load_latest, save_checkpoint
from arpo.learn.update import Learner

_BASE = "base.json"
_VALUES = 256
"""Values of each weight that enter the digest of a base."""


@dataclass(frozen=True)
class Position:
    """`step`: finished steps. `cursor`: tasks drawn. The rest is what they cost: tokens the policy sampled, executed
    tool calls, seconds of rollout and update."""

    step: int = 0
    cursor: int = 0
    generated_tokens: int = 0
    tool_calls: int = 0
    seconds: float = 0.0

    def after(self, *, cursor: int, generated_tokens: int, tool_calls: int, seconds: float) -> "Position":
        """One step further."""
        return dataclasses.replace(
            self,
            step=self.step + 1,
            cursor=cursor,
            generated_tokens=self.generated_tokens + generated_tokens,
            tool_calls=self.tool_calls + tool_calls,
            seconds=self.seconds + seconds,
        )

    def metrics(self) -> dict[str, float]:
        """What was spent so far, under the metrics' names."""
        return {
            "num_tokens": self.generated_tokens,
            "num_tool_calls": self.tool_calls,
            "num_prompts": self.cursor,
            "seconds": self.seconds,
        }


def save(root: Path, position: Position, model: Any, tokenizer: Any, learner: Learner, keep: int) -> None:
    """Write the checkpoint of `position` atomically; older ones beyond `keep` go."""

    def write(folder: Path) -> None:
        save_weights(model, folder)
        if is_adapted(model):
            (folder / _BASE).write_text(json.dumps({"sha256": base_digest(model)}))
        tokenizer.save_pretrained(folder)
        torch.save(learner.state_dict(), folder / "learner.pt")
        (folder / "position.json").write_text(json.dumps(dataclasses.asdict(position)))

    save_checkpoint(root, position.step, write, keep)


def restore(root: Path, model: Any, tokenizer: Any, learner: Learner, warn: Callable[[str], None]) -> Position:
    """Load the newest whole checkpoint into the live objects; the start if there is none.

    Raises CheckpointError if an adapter was trained on other weights than the model has.
    """
    found = load_latest(root, tokenizer=tokenizer, say=warn)
    if found is None:
        return Position()
    _, folder = found
    if is_adapted(model):
        _check_base(model, folder)
        load_adapter(model, folder)
    else:
        with torch.no_grad():
            model.load_state_dict(type(model).from_pretrained(folder, dtype=model.dtype).state_dict())
    learner.load_state_dict(torch.load(folder / "learner.pt", map_location="cpu", weights_only=True))
    return Position(**json.loads((folder / "position.json").read_text()))


def base_digest(model: Any) -> str:
    """SHA-256 over name, shape, precision and evenly spaced values of every weight but the adapter's.

    A look at all of them would cost minutes for a large model; other weights differ almost everywhere.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            value_V = weight.detach().flatten()[:: max(1, weight.numel() // _VALUES)]
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} ".encode())
            digest.update(value_V.double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _check_base(model: Any, folder: Path) -> None:
    if json.loads((folder / _BASE).read_text())["sha256"] != base_digest(model):
        raise CheckpointError(
            f"checkpoint {folder} holds an adapter that was trained on other weights than model.path has now; give the "
            "base back that the run was started from, or start a new run"
        )
