"""AdamW on the parameters that train, and the schedule of its rate.

Weights in half precision are stepped through float32 copies: at the learning rates of reinforcement learning one step
is far smaller than the last bit of a bfloat16 weight, and would vanish.
"""

import math
from typing import Any

import torch
from torch import nn

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
        """Scale the gradient down to the allowed norm and return the norm that it had."""
        return nn.utils.clip_grad_norm_(self.weights, self.max_grad_norm)

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
        """The optimiser's state and the float32 copies (None where the weight is its own)."""
        pairs = zip(self.weights, self.masters, strict=True)
        copies = [None if master is weight else master.detach() for weight, master in pairs]
        return {"optimizer": self.optimizer.state_dict(), "masters": copies}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; the model's weights are loaded by their owner."""
        self.optimizer.load_state_dict(state["optimizer"])
        for weight, master, saved in zip(self.weights, self.masters, state["masters"], strict=True):
            if (saved is None) != (master is weight):
                raise ValueError("the optimiser's state was saved for weights of another precision")
            if saved is not None:
                master.copy_(saved)


def _master(weight: nn.Parameter) -> nn.Parameter:
    """The tensor to optimise in place of a weight: itself, or a float32 copy if it has fewer bits."""
    return weight if weight.dtype.itemsize >= 4 else nn.Parameter(weight.detach().float())
