"""Devices as four numbers, and how much of each a real program gets.

Peaks are the makers' own, dense (no sparsity), bfloat16 with float32 sums. Nobody reaches them: `Use` says which share
of each is assumed, every share is an argument, and a plan's times are as good as these shares are. None of them was
measured on a GPU here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from arpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. `flops`: operations per second; `bandwidth`: bytes per second of its memory; `memory`: bytes;
    `link`: bytes per second and direction to another device of the node.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """What is assumed. Shares of the peaks: `update` of the operations in forward and backward passes, `prefill` of
    those in a prefill or a large decoding step, `decode` of the memory's bandwidth in a decoding step, `link` of the
    link. `step`: seconds that a decoding step takes beside (launches, sampling, the server's loop). `engine`: share of
    a device's memory that the sampling engine has, weights included. `chunk`: prefix tokens of one step at the most.
    `rows`: sequences that run at once on one replica at the most.
    """

    update: float = 0.4
    prefill: float = 0.5
    decode: float = 0.7
    link: float = 0.7
    step: float = 0.002
    engine: float = 0.5
    chunk: int = 8192
    rows: int = 256

    def __post_init__(self) -> None:
        for name in ("update", "prefill", "decode", "link", "engine"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"the share {name} = {getattr(self, name)}: it lies between 0 and 1")
        if self.step < 0 or self.chunk < 1 or self.rows < 1:
            raise ConfigError("step must not be negative, chunk and rows are at least 1")


_SXM = "NVIDIA's data sheet, SXM form, dense bfloat16; half of NVLink's two-way figure"
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("h100", 989e12, 3.35e12, 80e9, 450e9, _SXM),
        Device("h200", 989e12, 4.8e12, 141e9, 450e9, _SXM),
        Device("b200", 2250e12, 8e12, 180e9, 900e9, _SXM),
        Device("a100", 312e12, 2.039e12, 80e9, 300e9, _SXM),
        Device("l40s", 362e12, 0.864e12, 48e9, 32e9, "NVIDIA's data sheet, dense bfloat16; PCIe 4.0 x16"),
        Device("4090", 165e12, 1.008e12, 24e9, 32e9, "NVIDIA's Ada white paper, float32 sums; PCIe 4.0 x16"),
    )
}
"""The usual devices, by name."""


def device(
    name: str,
    *,
    flops: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    link: float | None = None,
) -> Device:
    """The device of that name, `cpu` for this machine as `calibrate` measures it, with what is given in its place.

    Of an unknown name all four numbers must be given; without `link` a device has its memory's bandwidth.
    """
    given = {"flops": flops, "bandwidth": bandwidth, "memory": memory, "link": link}
    own = {key: value for key, value in given.items() if value is not None}
    for key, value in own.items():
        if value <= 0:
            raise ConfigError(f"--{key} {value:g}: it must be positive")
    base = _base(name)
    if base is not None:
        mended: dict[str, Any] = dict(own)
        return replace(base, **mended)
    missing = [f"--{key}" for key in ("flops", "bandwidth", "memory") if key not in own]
    if missing:
        raise ConfigError(f"--hardware {name}: known are cpu, {', '.join(DEVICES)}; or give {', '.join(missing)}")
    return Device(name, own["flops"], own["bandwidth"], own["memory"], own.get("link", own["bandwidth"]), "as given")


def _base(name: str) -> Device | None:
    if name != "cpu":
        return DEVICES.get(name)
    from arpo.plan.calibrate import this_machine

    return this_machine()
