"""The server's gradient is the local learner's: same adapter, same trees, the norms compared."""

import re
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_trees import call, segment
from safetensors.torch import load
from tinker_server import RANK

from arpo.credit.base import Credit
from arpo.engine.lora import attach
from arpo.engine.models import load_policy
from arpo.engine.settings import LoraSettings
from arpo.engine.tinker_service import TinkerService
from arpo.learn.rows import flatten
from arpo.learn.settings import OptimSettings, loss_settings
from arpo.learn.tinker import TinkerLearner
from arpo.learn.update import Learner
from arpo.tree import Finish, Outcome, RolloutTree, Source

LR = 5e-3


def tree(seed: int) -> RolloutTree:
    """Two roots, a call, a branch after its result; tokens at random."""
    draw = np.random.default_rng(seed).integers(30, 500, 40).tolist()
    segments = (
        segment(draw[:6], Source.PROMPT),
        segment([*draw[6:9], 5], Source.POLICY, 0, finish=Finish.CALL),
        segment(draw[9:14], Source.TOOL, 1, event=call()),
        segment([*draw[14:18], 1], Source.POLICY, 2),
        segment([*draw[18:25], 1], Source.POLICY, 2),
        segment([*draw[25:27], 1], Source.POLICY, 0),
    )
    outcomes = tuple(Outcome(reward) for reward in (1.0, 0.0, 0.5))
    return RolloutTree(f"tree {seed}", segments, (3, 4, 5), (), outcomes)


def credit(of: RolloutTree, seed: int) -> Credit:
    """Advantages and weights that differ from node to node."""
    draw = np.random.default_rng(seed)
    paths = [list(of.ancestry(leaf)) for leaf in of.leaves]
    own = [np.array([float(of.segments[node].is_policy) for node in path]) for path in paths]
    values = tuple(draw.normal(size=len(mask)) * mask for mask in own)
    return Credit(values, tuple(draw.uniform(0.5, 2, len(mask)) * mask for mask in own))


@pytest.fixture(scope="module")
def service(settings: Any) -> TinkerService:
    return TinkerService(settings, "pocket", seed=3)


def adapter(service: TinkerService, checkpoints: Path) -> dict[str, torch.Tensor]:
    """The trained adapter as the server wrote it last, by the names that it has in our own model."""
    service.sampler(trained=True)
    folder = checkpoints / service.training.model_id / "sampler_weights"
    newest = max(folder.glob("*.tar.gz"), key=lambda file: file.stat().st_mtime)
    with tarfile.open(newest) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("adapter_model.safetensors"))
        read = archive.extractfile(member)
        assert read is not None
        state = load(read.read())
    return {
        name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): v for name, v in state.items()
    }


def twin(service: TinkerService, checkpoints: Path, base: Path, loss: Any) -> Learner:
    """A local learner on the same base with the same adapter."""
    model, _ = load_policy(str(base), device="cpu")
    attach(model, LoraSettings(rank=RANK, alpha=32), base=str(base), seed=0)
    state = adapter(service, checkpoints)
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    assert len(state) == sum(p.requires_grad for p in model.parameters())
    learner = Learner(model, loss, OptimSettings(lr=LR, max_grad_norm=1e9, packing="tree"), total_updates=9)
    learner.stepper.clip = lambda: norm(model)  # type: ignore[method-assign]
    return learner


def norm(model: Any) -> torch.Tensor:
    """Of the gradient, where queries, keys and values share one factor A, and so do gate and up: SkyRL fuses them."""
    sums: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            one = re.sub(r"(q|k|v)_proj\.lora_A|(gate|up)_proj\.lora_A", "shared", name)
            sums[one] = sums[one] + parameter.grad if one in sums else parameter.grad.clone()
    return torch.stack([value.norm() for value in sums.values()]).norm()


def resampled(trees: Sequence[RolloutTree], learner: Any, shift: float) -> list[RolloutTree]:
    """The same trees, as if sampled by a policy that is near the learner's: ratios on both sides of the bounds."""
    found = []
    for one, logp_N in zip(trees, learner.logprobs(trees), strict=True):
        flat, draw = flatten(one), np.random.default_rng(len(one.task_id))
        noisy_N = logp_N + draw.normal(scale=shift, size=len(logp_N))
        pieces = np.split(noisy_N.astype(np.float32), flat.start_S[1:])
        segments = tuple(
            replace(s, logprobs=piece) if s.is_policy else s for s, piece in zip(one.segments, pieces, strict=True)
        )
        found.append(replace(one, segments=segments))
    return found


LOSSES = {
    "ppo at the server, token_mean": loss_settings("dapo"),
    "ppo at the server, sequence_mean": loss_settings("grpo"),
    "ppo at the server, group_sum": loss_settings("grpo", aggregation="group_sum"),
    "cispo at the server": loss_settings("cispo", clip_high=0.2),
    "clip with dual clip, gradient taken here": loss_settings("clip", dual_clip=1.5),
    "gspo, gradient taken here": loss_settings("gspo", clip_low=0.1, clip_high=0.1),
    "aepo, gradient taken here": loss_settings("aepo"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_ours(name: str, service: TinkerService, server: Any, base: Path, figures: Any) -> None:
    """Norms of the gradient at the server and here, after steps have moved both factors of the adapter off zero."""
    loss = LOSSES[name]
    remote = TinkerLearner(service, loss, OptimSettings(lr=LR, max_grad_norm=float("inf")), total_updates=9)
    trees = [tree(1), tree(2)]
    credits = [credit(one, seed) for seed, one in enumerate(trees)]
    trees = resampled(trees, remote, 0.3)
    local = twin(service, server.checkpoints, base, loss)

    there, here = remote.update(trees, credits), local.update(trees, credits)

    figures[f"gradient norm at the server and here: {name}"] = f"{there['grad_norm']:.6f}, {here['grad_norm']:.6f}"
    assert here["grad_norm"] > 1e-3
    assert there["grad_norm"] == pytest.approx(here["grad_norm"], rel=2e-4)
    assert there["loss"] == pytest.approx(here["loss"], rel=1e-3, abs=1e-5)
    for figure in ("num_tokens", "num_trajectories", "num_groups", "ratio/mean"):
        assert there[figure] == pytest.approx(here[figure], rel=1e-4)
