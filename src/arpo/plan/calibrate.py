"""This machine as a `Device`: a matrix product, a copy, and what the model itself does with them.

The first two are the peaks that the other devices' data sheets state. On a CPU they say little about a small model,
whose products are small and whose layers wait for Python, so `gradient_rate` times a model's own forward and backward.

Times are CPU seconds of this process where asked for (`time.process_time`, one thread), so that a machine that others
use says nearly what an idle one does.
"""

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from arpo.plan.hardware import Device
from arpo.plan.shapes import Shape

Clock = Callable[[], float]
_SIDE, _BYTES = 1024, 1 << 26
_TRIES = 9
"""Of each measurement: the clock rate of a machine wanders within seconds."""


def this_machine(clock: Clock = time.perf_counter) -> Device:
    """Operations per second of a float32 matrix product and bytes per second of a copy (read and written), the best of
    a few tries; the machine's memory. Takes about a second.
    """
    left, right = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    source, target = torch.ones(_BYTES, dtype=torch.uint8), torch.empty(_BYTES, dtype=torch.uint8)
    flops = 2.0 * _SIDE**3 / min(_tries(lambda: left @ right, clock))
    bandwidth = 2.0 * _BYTES / min(_tries(lambda: target.copy_(source), clock))
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    what = f"float32, {torch.get_num_threads()} threads, measured now"
    return Device("cpu", flops, bandwidth, memory, bandwidth, what)


def _tries(run: Callable[[], Any], clock: Clock) -> list[float]:
    """Seconds of a few tries, each long enough for the clock, after one that warms up."""
    run()
    return [_once(run, clock) for _ in range(_TRIES)]


def _once(run: Callable[[], Any], clock: Clock) -> float:
    started, count = clock(), 0
    while count == 0 or clock() - started < 0.05:
        run()
        count += 1
    return (clock() - started) / count


def gradient_rate(
    model: Any, shape: Shape, *, rows: int = 4, length: int = 256, clock: Clock = time.perf_counter
) -> float:
    """Operations per second of forward and backward over `rows` rows of `length` random tokens: the median."""
    from arpo.plan.phases import gradient_operations

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, shape.vocabulary, (rows, length), generator=generator)
    tokens, pairs = float(rows * length), rows * length**2 / 2

    def gradient() -> None:
        model(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).sum().backward()
        model.zero_grad(set_to_none=True)

    return gradient_operations(shape, tokens, tokens, pairs) / median(_tries(gradient, clock))
