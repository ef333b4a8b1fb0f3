"""AdamW on the parameters that train, and the schedule of its rate.

Weights in half precision are stepped through float32 copies: at the learning rates of reinforcement learning one step
is far smaller than the last bit of a bfloat16 weight, and would vanish.

Weights may be shards (`arpo.learn.devices`): then so are gradients, float32 copies and the optimiser's state. What is
saved is whole all the same, so a run can be taken up by another number of processes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from arpo.engine.shards import cut, kept, whole
from arpo.learn.settings import OptimSettings


def rate(settings: OptimSettings, update: int, total: int) -> float:
    """Learning rate of update `update` (from 0) of `total`.

    Raises ValueError past the end of a cosine, where the rate would stay 0 and training silently do nothing.
    """
    if update < settings.warmup_steps:
        return settings.lr * (update + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    if update >= total:
        raise ValueError(f"update {update + 1} of a cosine schedule of {total} updates: the rate has reached 0")
    progress = (update - settings.warmup_steps) / (total - settings.warmup_steps)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))


class Stepper:
    """AdamW with gradient clipping. Weight decay acts on matrices alone, not on norms and biases."""

    def __init__(self, model: nn.Module, settings: OptimSettings) -> None:
        self.weights = [p for p in model.parameters() if p.requires_grad]
        if not self.weights:
            raise ValueError("the model has no parameter that requires a gradient")
        self.masters = [_master(p) for p in self.weights]
        matrices = [p for p in self.masters if p.ndim > 1]
        others = [p for p in self.masters if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.max_grad_norm = settings.max_grad_norm
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.lr, betas=settings.betas)

    def clip(self) -> torch.Tensor:
        """Scale the gradient down to the allowed norm and return the norm that it had, over all shards."""
        return whole(nn.utils.clip_grad_norm_(self.weights, self.max_grad_norm))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One AdamW step at rate `lr`; gradients are gone afterwards."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float()
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                weight.copy_(master)
                master.grad = None
        self.clear()

    def clear(self) -> None:
        """Drop all gradients."""
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the float32 copies (None where the weight is its own).

        Of shards, all processes must ask at once; the first gets whole tensors on the CPU, the others None in their
        place.
        """
        pairs = zip(self.weights, self.masters, strict=True)
        copies = [None if master is weight else kept(master.detach()) for weight, master in pairs]
        return {"optimizer": _mapped(self.optimizer.state_dict(), lambda _, value: kept(value)), "masters": copies}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; the model's weights are loaded by their owner.

        Every process is given the whole state, and keeps its shards of it.
        """
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        self.optimizer.load_state_dict(_mapped(state["optimizer"], lambda i, value: cut(value, params[i])))
        for weight, master, saved in zip(self.weights, self.masters, state["masters"], strict=True):
            if (saved is None) != (master is weight):
                raise ValueError("the optimiser's state was saved for weights of another precision")
            if saved is not None:
                master.copy_(cut(saved, master))


def _master(weight: nn.Parameter) -> nn.Parameter:
    """The tensor to optimise in place of a weight: itself, or a float32 copy if it has fewer bits."""
    return weight if weight.dtype.itemsize >= 4 else nn.Parameter(weight.detach().float())


def _mapped(state: dict[str, Any], change: Callable[[int, Any], Any]) -> dict[str, Any]:
    """An optimiser's state dict with every value of the i-th parameter changed."""
    values = {i: {name: change(i, value) for name, value in own.items()} for i, own in state["state"].items()}
    return state | {"state": values}
