"""One of several processes that train a tiny model together: `python two_processes.py FOLDER` with RANK and WORLD_SIZE.

It runs the cases of FOLDER/cases.pt one after the other and leaves what each gave in FOLDER/<case>.<rank>.pt. The
processes find each other through a file, so no port has to be free; a collective that waits for 60 s is an error.
"""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers import Qwen3ForCausalLM

from arpo.credit import Credit
from arpo.learn import logprobs
from arpo.learn.settings import LossSettings, OptimSettings
from arpo.learn.update import Learner
from arpo.tree import RolloutTree


@dataclass(frozen=True)
class Case:
    """What to train, on what, how. `kind`: ddp | fsdp | none. `adapter`: LoRA, with the model as its own reference."""

    name: str
    kind: str
    model: Any
    """(configuration, weights)"""
    loss: LossSettings
    optim: OptimSettings
    batches: list[tuple[list[RolloutTree], list[Credit]]]
    reference: Any = None
    adapter: bool = False
    resume_at: int | None = None
    """Before this update, state and weights go through a file into a new learner."""
    mixed_precision: str = "no"
    different: bool = False
    """Every process is given other trees."""
    chunk: int | None = None
    """Logits that the head may hold at once."""


def run(case: Case, accelerator: Any, folder: Path) -> dict[str, Any]:
    """Metrics of every update (or its error), weights and log-probs after the last, shares of weights and states."""
    before = logprobs.CHUNK_LOGITS
    logprobs.CHUNK_LOGITS = case.chunk or before
    try:
        return _run(case, accelerator, folder)
    finally:
        logprobs.CHUNK_LOGITS = before


def _run(case: Case, accelerator: Any, folder: Path) -> dict[str, Any]:
    learner = _learner(case, case.model, accelerator)
    out: dict[str, Any] = {
        "metrics": [],
        "errors": [],
        "size": sum(p.numel() for p in _built(case, case.model).parameters()),
    }
    for number, (trees, credits) in enumerate(case.batches):
        if number == case.resume_at:
            learner = _resumed(case, learner, accelerator, folder)
        if case.different and accelerator is not None:
            keep = slice(accelerator.process_index, None)
            trees, credits = trees[keep], credits[keep]
        try:
            out["metrics"].append(learner.update(trees, credits))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            out["errors"].append((type(error).__name__, str(error)))
    out["weights"] = _weights(learner.model)
    out["logprobs"] = None if out["errors"] and case.different else learner.logprobs(case.batches[0][0])
    out["own"] = sum(_local(p).numel() for p in learner.model.parameters())
    if learner.reference is not None:
        out["own_reference"] = sum(_local(p).numel() for p in learner.reference.model.parameters())
    states = [s for state in learner.stepper.optimizer.state.values() for s in state.values() if s.ndim]
    out["own_state"] = sum(_local(s).numel() for s in states)
    return out


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _weights(model: Any) -> dict[str, torch.Tensor]:
    """Whole and copied; of shards, all processes must ask at once."""
    return {
        name: (w.full_tensor() if hasattr(w, "full_tensor") else w.clone()) for name, w in model.state_dict().items()
    }


def _built(case: Case, saved: Any) -> Any:
    config, weights = saved
    model = Qwen3ForCausalLM(config).to(next(iter(weights.values())).dtype)
    if case.adapter:
        from arpo.engine.lora import attach
        from arpo.engine.settings import LoraSettings

        attach(model, LoraSettings(rank=4), base="tiny", seed=3)
    model.load_state_dict(weights)
    return model.eval()


def _learner(case: Case, saved: Any, accelerator: Any) -> Learner:
    model = _built(case, saved)
    reference = model if case.adapter else None
    if case.reference is not None:
        reference = _built(case, case.reference)
    return Learner(model, case.loss, case.optim, total_updates=10, reference=reference, accelerator=accelerator)


def _resumed(case: Case, learner: Learner, accelerator: Any, folder: Path) -> Learner:
    rank = 0 if accelerator is None else accelerator.process_index
    state, weights = learner.state_dict(), _weights(learner.model)
    path = folder / f"{case.name}.state"
    if rank == 0:
        torch.save((state, weights), path)
    if accelerator is not None:
        distributed.barrier()
    return _loaded(case, accelerator, path)


def _loaded(case: Case, accelerator: Any, path: Path) -> Learner:
    state, weights = torch.load(path, weights_only=True)
    fresh = _learner(case, (case.model[0], weights), accelerator)
    fresh.load_state_dict(state)
    return fresh


def taken_up(case: Case, folder: Path) -> dict[str, torch.Tensor]:
    """The weights that one process ends with when it goes on from what several have saved at `resume_at`."""
    learner = _loaded(case, None, folder / f"{case.name}.state")
    for trees, credits in case.batches[case.resume_at :]:
        learner.update(trees, credits)
    return _weights(learner.model)


def main(folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    cases: list[Case] = torch.load(folder / "cases.pt", weights_only=False)
    for case in sorted(cases, key=lambda case: case.kind):  # fsdp last: accelerate keeps the wish in the environment
        accelerator = _accelerator(case)
        torch.save(run(case, accelerator, folder), folder / f"{case.name}.{rank}.pt")
    distributed.destroy_process_group()


def _accelerator(case: Case) -> Any:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if case.kind == "fsdp" else None
    return Accelerator(cpu=True, fsdp_plugin=plugin, mixed_precision=case.mixed_precision)


if __name__ == "__main__":
    sys.modules["two_processes"] = sys.modules["__main__"]
    main(Path(sys.argv[1]))
