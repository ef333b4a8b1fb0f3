"""Weights of which each process holds a share (FSDP2): put together, and cut again.

A weight that is whole in this process passes through unchanged, so callers need not know which they have. Putting one
together is collective: all processes ask for the same weights in the same order.
"""

from typing import Any

import torch


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


def cut(value: Any, like: torch.Tensor) -> Any:
    """This process's shard of a whole tensor of the shape of a sharded one; anything else as it is."""
    if not is_shard(like) or not isinstance(value, torch.Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
