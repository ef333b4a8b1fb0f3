"""What the machine gives at best, and what a computation takes at most: matrix speed, memory.

A time means little by itself. The speed of the model's own largest matrix product, measured just before, is the bound
against which the update is held; on a machine shared with others it moves, and the bound moves with it.

Peak memory on a CPU is the process's high-water mark, which the kernel can set back; allocations of an earlier
computation would still be in the heap, so every variant is measured in a process of its own. On CUDA the allocator
counts.
"""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch

from arpo.errors import ArpoError

_SECONDS, _TRIES = 0.2, 5
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Of mallopt: no limit to what is kept, and no block apart."""
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def now(device: torch.device) -> float:
    """Seconds on a clock, after all that was queued on the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def device_name(device: torch.device) -> str:
    """The card's name, or what kind of device it is."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def keep_freed_memory() -> None:
    """Let glibc's allocator keep what is freed (a no-op where there is none).

    By default it hands large blocks back to the system and faults them in again, page by page, which takes up to a
    quarter of a gradient on a CPU; and how much it keeps depends on what ran before, so forms that take turns would
    decide each other's times.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_MAX, 0)


@torch.no_grad()
def matrix_speed(form: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second of a matrix product of `form` (rows, inputs, outputs): the best of a few tries."""
    rows, inputs, outputs = form
    left, right = (torch.randn(size, device=device).to(dtype) for size in ((rows, inputs), (outputs, inputs)))
    left @ right.T
    return 2.0 * rows * inputs * outputs / min(_seconds_per_product(left, right, device) for _ in range(_TRIES))


def _seconds_per_product(left: torch.Tensor, right: torch.Tensor, device: torch.device) -> float:
    started, count = now(device), 0
    while count < 3 or now(device) - started < _SECONDS / _TRIES:
        left @ right.T
        count += 1
    return (now(device) - started) / count


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most memory that `run` held at once beyond what was held before it.

    Raises ArpoError where that cannot be known: on a CPU it takes Linux's /proc/self/clear_refs.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ArpoError(f"peak memory on {device.type} cannot be measured; leave it out with --no-memory")
    _reset_high_water()
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _reset_high_water() -> None:
    try:
        _CLEAR.write_text("5")
    except OSError as error:
        raise ArpoError(
            f"peak memory needs {_CLEAR}, which this system does not offer ({error.strerror}); leave it out with "
            "--no-memory"
        ) from error


def _status(name: str) -> int:
    """A line of the process's status, in bytes."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024
