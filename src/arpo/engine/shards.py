"""Weights of which each process holds a share (FSDP2): put together, and cut again.

A weight that is whole in this process passes through unchanged, so callers need not know which they have. Putting one
together is collective: all processes ask for the same weights in the same order.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def is_shard(value: Any) -> bool:
    """Whether this process has a share of the tensor only."""
    return hasattr(value, "full_tensor")


def whole(value: Any) -> Any:
    """A sharded tensor put together, in every process; anything else as it is."""
    return value.full_tensor() if is_shard(value) else value


def kept(value: Any) -> Any:
    """A sharded tensor put together, on the first process's CPU, None elsewhere; anything else as it is."""
    put_together = whole(value)
    if put_together is value:
        return value
    return put_together.cpu() if value.device_mesh.get_rank() == 0 else None


def kept_state(model: nn.Module, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """The state dict, `kept`, of the names that are wanted. Tied weights stay one tensor, so that files have them once.

    Of whole weights these are the model's own. Collective where the model is sharded.
    """
    owner = {name: id(weight) for name, weight in model.named_parameters(remove_duplicate=False)}
    found: dict[int, Any] = {}
    state = {}
    for name, value in model.state_dict().items():
        if wanted(name):
            mark = owner.get(name, id(value))
            if mark not in found:
                found[mark] = kept(value)
            state[name] = found[mark]
    return state


def cut(value: Any, like: torch.Tensor) -> Any:
    """This process's shard of a whole tensor of the shape of a sharded one; anything else as it is."""
    if not is_shard(like) or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
