"""One learner in several processes: who computes which packs, and how the shares become one update.

Every process is given the same mini-batch and cuts it into the same packs, so nothing about the data is ever sent. Each
computes its part of them; gradients are averaged over the processes (so losses are multiplied by their number), sums
are added up, and whatever a decision hangs on is added up before it is taken: all processes step, or all raise.

Weights are whole in every process (DistributedDataParallel) or cut into shards (FSDP2). Passes over shards are
collective, layer by layer: a process may neither skip one nor make one more. Packs are therefore dealt out in rounds of
one for each, largest first, in a round the largest to the process with the least so far; who is left without one in the
last round computes a copy of the smallest that weighs nothing.

`accelerate` says what was launched, on which devices, in which precision, and wraps whole weights. Shards are cut here,
by torch's `fully_shard`, since accelerate 1.15 cannot serve: it takes exactly one model and only together with an
optimiser on that model's own parameters, but a reference is a second model and our optimiser steps on float32 copies;
its mixed precision rounds what the forward pass returns, here log-probs; and on CPUs it ignores its FSDP plugin. The
unit of sharding is a transformer layer; embedding, final norm and output head go with the root, which is the policy
head: its forward pass holds all of them, and they stay whole until its backward pass has ended, as the head's slices
that are computed again there require.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

from arpo.errors import ConfigError, DataError
from arpo.learn.packing import Pack

Score = Callable[[Pack], tuple[torch.Tensor, torch.Tensor]]


class Devices:
    """One process, which has everything: nothing is dealt out, nothing is added up."""

    factor = 1
    """By which a loss is multiplied before its gradient is taken."""
    first = True
    """Whether this process writes what one of them has to write."""
    autocast = False
    """Whether forward passes are to multiply in bfloat16: the heads do that, accelerate's own would end at them."""

    def place(self, model: nn.Module) -> None:
        """Put a whole model where this process computes, equal in all processes."""

    def shard(self, head: nn.Module) -> None:
        """Leave this process its shard of a head's weights, in place."""

    def wrap(self, head: nn.Module) -> Score:
        """What forward passes with a gradient go through; after `shard`."""
        return head

    def mine(self, packs: Sequence[Pack]) -> list[Pack]:
        """This process's packs, as many as every other's. DataError if the processes were given different ones."""
        return list(packs)

    def passing(self, *, last: bool) -> AbstractContextManager[None]:
        """To be held around a forward and backward pass; gradients of the processes need not meet before the last."""
        return nullcontext()

    @contextmanager
    def scoring(self, head: nn.Module) -> Iterator[None]:
        """To be held around passes of `head` that take no gradient."""
        with torch.no_grad():
            yield

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Over all processes."""
        return values


class Replicas(Devices):
    """Processes that hold the whole model each."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device
        self.factor = int(accelerator.num_processes)
        self.first = accelerator.process_index == 0
        self.autocast = accelerator.mixed_precision == "bf16"
        self._wrapped: Any = None

    @torch.no_grad()
    def place(self, model: nn.Module) -> None:
        """Besides: the first process's weights and buffers go to all."""
        model.to(self.device)
        for tensor in [*model.parameters(), *model.buffers()]:
            distributed.broadcast(tensor.detach(), 0)

    def wrap(self, head: nn.Module) -> Score:
        self._wrapped = self.accelerator.prepare_model(head)
        return self._wrapped

    def mine(self, packs: Sequence[Pack]) -> list[Pack]:
        self._compare(packs)
        return deal(packs, self.factor)[self.accelerator.process_index]

    def passing(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.accelerator.no_sync(self._wrapped)

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
        distributed.all_reduce(total)
        return total.cpu().numpy()

    def _compare(self, packs: Sequence[Pack]) -> None:
        """Different packs would leave some process waiting in a pass that the others do not make."""
        mark = fingerprint(packs)
        bounds = torch.tensor([mark, -mark], device=self.device)
        distributed.all_reduce(bounds, distributed.ReduceOp.MAX)
        if int(bounds[0]) != -int(bounds[1]):
            raise DataError("the processes were given different trees or credits: give every one the whole mini-batch")


class Shards(Replicas):
    """Processes that hold a share of every weight, its gradient and its optimiser state each."""

    def __init__(self, accelerator: Any) -> None:
        super().__init__(accelerator)
        self._half, self.autocast = self.autocast, False  # weights are gathered as bfloat16 instead

    def shard(self, head: nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self._half else MixedPrecisionPolicy()
        mesh = init_device_mesh(self.device.type, (self.factor,))
        for module in _layers(head):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(head, mesh=mesh, mp_policy=policy)

    def wrap(self, head: nn.Module) -> Score:
        return head

    def passing(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients meet in every pass: put off, they would be whole in every process until then."""
        return nullcontext()

    @contextmanager
    def scoring(self, head: Any) -> Iterator[None]:
        """Besides: the root, which would wait for a backward pass, is cut again."""
        with torch.no_grad():
            try:
                yield
            finally:
                head.reshard()


def devices_of(accelerator: Any = None) -> Devices:
    """For an `accelerate.Accelerator`; None: one process, wherever the model is.

    Raises ConfigError for a way of distribution or a precision that the learner does not have.
    """
    if accelerator is None:
        return Devices()
    check(accelerator)
    if accelerator.num_processes == 1:
        return _Single(accelerator)
    return Shards(accelerator) if is_sharded(accelerator) else Replicas(accelerator)


class _Single(Devices):
    """One process on the accelerator's device, in its precision."""

    def __init__(self, accelerator: Any) -> None:
        self.device: torch.device = accelerator.device
        self.autocast = accelerator.mixed_precision == "bf16"

    def place(self, model: nn.Module) -> None:
        model.to(self.device)


def deal(packs: Sequence[Pack], processes: int) -> list[list[Pack]]:
    """Packs of each process, equally many: rounds of one for each, the largest of a round to whom has the least.

    Where passes wait for one another no other way takes less, for in each round only the largest counts; where they do
    not, tokens are balanced as in scheduling by longest processing time.
    """
    order = sorted(packs, key=lambda pack: -pack.tokens)
    hands: list[list[Pack]] = [[] for _ in range(processes)]
    for start in range(0, len(order), processes):
        dealt = order[start : start + processes]
        dealt += [order[-1].silent()] * (processes - len(dealt))
        takers = sorted(hands, key=lambda hand: sum(pack.tokens for pack in hand))
        for hand, pack in zip(takers, dealt, strict=True):
            hand.append(pack)
    return hands


def fingerprint(packs: Sequence[Pack]) -> int:
    """Of what packs read and predict, for whom. Not of real numbers, whose last digits may differ between machines."""
    mark = len(packs)
    for pack in packs:
        for tensor in (pack.input_BT, pack.state_S, pack.label_U, pack.index_P, pack.row_P):
            mark = zlib.crc32(tensor.numpy().tobytes(), mark)
    return mark


def _layers(head: nn.Module) -> list[nn.Module]:
    """The transformer layers within, the inner before the outer."""
    model: Any = head.model
    names = model._no_split_modules or ()
    return [module for module in reversed(list(head.modules())) if type(module).__name__ in names]


def is_sharded(accelerator: Any) -> bool:
    """Whether FSDP was asked for. On CPUs accelerate leaves that in the environment and nowhere else."""
    if accelerator.distributed_type == "MULTI_CPU":
        return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return accelerator.distributed_type == "FSDP"


def check(accelerator: Any) -> None:
    """Raise ConfigError for whatever was asked of accelerate and would not happen."""
    kind, plugin = accelerator.distributed_type.value, getattr(accelerator.state, "fsdp_plugin", None)
    problem = ""
    if kind != "NO" and kind != "FSDP" and not kind.startswith("MULTI_"):
        problem = f"{kind}: the learner runs under DistributedDataParallel or FSDP2"
    elif kind == "FSDP" and not accelerator.is_fsdp2:
        problem = "FSDP version 1: set fsdp_version = 2"
    elif accelerator.mixed_precision not in ("no", "bf16"):
        problem = f"mixed precision {accelerator.mixed_precision}, whose gradients need scaling: set bf16 or none"
    elif accelerator.parallelism_config is not None:
        problem = "a parallelism_config: the learner knows data parallelism alone; leave it out"
    elif plugin is not None and plugin.activation_checkpointing:
        problem = "activation checkpointing of accelerate: set optim.gradient_checkpointing instead"
    elif plugin is not None and plugin.cpu_ram_efficient_loading:
        problem = "weights that only the first process reads: set cpu_ram_efficient_loading = false"
    elif plugin is not None and _offloads(plugin):
        problem = "FSDP weights on the CPU: leave cpu_offload out and lower optim.micro_tokens"
    if problem:
        raise ConfigError(f"accelerate was set up for {problem}")


def _offloads(plugin: Any) -> bool:
    """An empty OffloadPolicy is how FSDP2 says no."""
    return bool(plugin.cpu_offload) and type(plugin.cpu_offload).__name__ != "OffloadPolicy"
