"""What each phase of a step takes, and what limits it.

Every phase is a few candidates for its time; the largest decides and gives the phase its name. With F, B, Y, K for a
device's operations, memory bandwidth, memory and link per second (each times the share that `Use` assumes), G devices
in R replicas of G / R, P parameters of b bytes, and the letters of `work` and `shapes`:

**Decoding.** One step of a replica with m rows of c cached tokens, and q prefix tokens beside them:

    step = max((P b + m c kv) / B, (m + q) 2 trunk + m 2 output + (m + q) c pair) / F) + overhead

Weights are read once per step, keys and values once per row. m is the smallest of: rows in flight on the replica
(prompts in flight x M / R), the server's limit, and (share of Y - P b) / (kv x unique tokens in flight per row).
Tokens are sampled in sampled / (R m) steps.

**Prefill.** Prompts and results are computed once each (prefix reuse): their operations / F, added to the decoding.
That is the most it takes, for chunks ride along with decoding steps whose arithmetic is idle.

**Tools.** calls x mean latency / workers, and never less than one call.

**A trajectory by itself** takes L steps and T calls one after the other, however many GPUs there are.

**Rollout.** Without barriers the phases overlap, so it takes at least the longest of engine, tools and path, and no
more than these one after the other. The simulation says where in between.

**Update.** 6 P per token in essence: 3 x (2 trunk) per unique token, 3 x (2 output) per label, 3.5 x pair per
query-key pair; under checkpointing one trunk and attention forward more; one forward more each for old log-probs of
the trainer's own and for a reference. All / (G F). FSDP2 gathers b P (G - 1) / G bytes in forward and backward of each
pass, and scatters as many gradients: passes x 3 x that / K, which overlaps, so the larger of both counts. The optimiser
moves 28 bytes per parameter and step / (G B).

**Publication.** P b / K to every replica at once.
"""

import math
from dataclasses import dataclass

from arpo.plan.hardware import Device, Use
from arpo.plan.shapes import Shape
from arpo.plan.work import Work

OPTIMISER_BYTES = 28
"""Read and written per parameter by AdamW with a float32 copy: copy, two moments (read, written), gradient (read)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of one phase; `limit`: what decides them; `parts`: the candidates, in seconds."""

    name: str
    seconds: float
    limit: str
    parts: dict[str, float]


def _phase(name: str, parts: dict[str, float]) -> Phase:
    limit = max(parts, key=lambda part: parts[part])
    return Phase(name, parts[limit], limit, parts)


@dataclass(frozen=True, slots=True)
class Replica:
    """One sampling engine: a model on one device or several together. All of `Use`'s shares are applied.

    `flops`, `bandwidth`: per second; `room`: tokens of keys and values; `weights`: bytes read in every step; `kv`:
    bytes per cached token; `token`, `label`, `pair`: operations; `overhead`: seconds per step.
    """

    flops: float
    bandwidth: float
    room: int
    weights: float
    kv: float
    token: float
    label: float
    pair: float
    overhead: float
    chunk: int
    rows: int

    def step(self, rows: float, cached: float, prefill: float = 0.0) -> float:
        """Seconds of one step: `rows` sequences that hold `cached` tokens together, and `prefill` prefix tokens."""
        return max(self.reading(cached), self.computing(rows, cached, prefill)) + self.overhead

    def reading(self, cached: float) -> float:
        return (self.weights + cached * self.kv) / self.bandwidth

    def computing(self, rows: float, cached: float, prefill: float = 0.0) -> float:
        deep = cached / rows if rows else 0.0
        linear = (rows + prefill) * self.token + rows * self.label
        return (linear + (cached + prefill * deep) * self.pair) / self.flops


def replica(shape: Shape, device: Device, use: Use, *, devices: int = 1, width: int = 2) -> Replica:
    """`devices` together hold one copy of the model, numbers of `width` bytes; `room` may come out negative."""
    weights, kv = shape.parameters * width, shape.kv_bytes(width)
    return Replica(
        flops=device.flops * use.prefill * devices,
        bandwidth=device.bandwidth * use.decode * devices,
        room=int((device.memory * use.engine * devices - weights) / kv),
        weights=float(weights - (0 if shape.tied else shape.output * width)),
        kv=float(kv),
        token=shape.per_token,
        label=shape.per_label,
        pair=shape.per_pair,
        overhead=use.step,
        chunk=use.chunk,
        rows=use.rows,
    )


@dataclass(frozen=True, slots=True)
class Decoding:
    """`rows` of one replica that run at once and what limits them; `held`: tokens of keys and values per row, shared
    ones counted once; `step`: seconds."""

    rows: float
    limit: str
    held: float
    step: float
    step_limit: str


def decoding(work: Work, one: Replica, replicas: int, in_flight: int) -> Decoding:
    """The steady state: as many rows as there are, or as run at once, or as fit."""
    mean = work.trajectory
    # Halfway through, a trajectory holds half of what it will; the prompt is held once by its group.
    held = mean.prompt / work.group + (work.unique / work.prompts - mean.prompt) / work.group / 2
    wanted = {
        "trajectories in flight": min(in_flight, work.prompts) * work.group / replicas,
        "the server's rows": float(one.rows),
        "KV memory": max(one.room / held, 1.0),
    }
    limit = min(wanted, key=lambda name: wanted[name])
    rows = wanted[limit]
    cached = rows * (mean.prompt + mean.response / 2)
    reading, computing = one.reading(cached), one.computing(rows, cached)
    what = "arithmetic" if computing > reading else "weights" if one.weights > cached * one.kv else "keys and values"
    return Decoding(rows, limit, held, one.step(rows, cached), what)


def engine(work: Work, one: Replica, replicas: int, now: Decoding) -> Phase:
    """All sampling and prefill."""
    steps = work.sampled / (replicas * now.rows)
    fresh = max(work.unique - work.labels, 0.0)
    deep = work.trajectory.prompt + work.trajectory.response / 2
    prefill = fresh * (one.token + deep * one.pair) / one.flops / replicas
    total = steps * now.step + prefill
    return Phase("engine", total, now.step_limit, {"decoding": steps * now.step, "prefill": prefill})


def tools(work: Work, latency: float, workers: int) -> Phase:
    """All calls. `latency`: mean seconds."""
    return _phase("tools", {"workers": work.calls * latency / workers, "one call": latency if work.calls else 0.0})


def path(work: Work, latency: float, now: Decoding) -> Phase:
    """One trajectory by itself."""
    mean = work.trajectory
    return _phase("one trajectory", {"sampling": mean.sampled * now.step, "tools": mean.calls * latency})


@dataclass(frozen=True, slots=True)
class Update:
    """`operations`: of the step's gradients on trees; `flat`: on trajectories one by one. `phase`: time."""

    operations: float
    flat: float
    passes: int
    phase: Phase

    @property
    def saved(self) -> float:
        """flat / tree: the most that computing shared tokens once can gain."""
        return self.flat / self.operations


def update(
    work: Work,
    shape: Shape,
    device: Device,
    use: Use,
    *,
    devices: int,
    micro_tokens: int,
    updates: int = 1,
    checkpointing: bool = False,
    forwards: int = 0,
    width: int = 2,
) -> Update:
    """All optimiser steps of one step of training. `forwards`: passes without gradient (old log-probs, reference)."""

    def operations(tokens: float, labels: float, pairs: float) -> float:
        return gradient_operations(
            shape, tokens, labels, pairs, checkpointing=checkpointing
        ) + forwards * forward_operations(shape, tokens, labels, pairs)

    tree = operations(work.unique, work.labels, work.pairs)
    flat = operations(work.flat, work.flat_labels, work.flat_pairs)
    passes = updates * math.ceil(work.unique / updates / micro_tokens / devices)
    moved = 3 * shape.parameters * width * (devices - 1) / devices * passes
    computing = tree / (device.flops * use.update * devices)
    sending = moved / (device.link * use.link)
    stepping = updates * OPTIMISER_BYTES * shape.parameters / (device.bandwidth * use.decode * devices)
    seconds = max(computing, sending) + stepping
    limit = "gathering weights" if sending > computing else "arithmetic"
    parts = {"arithmetic": computing, "gathering weights": sending, "optimiser": stepping}
    return Update(tree, flat, passes, Phase("update", seconds, limit, parts))


def gradient_operations(
    shape: Shape, tokens: float, labels: float, pairs: float, *, checkpointing: bool = False
) -> float:
    """Forward and backward, counted as `bench.work` counts them (its factors, from its docstring)."""
    from arpo.bench.work import ATTENTION, LINEAR

    again = 1.0 if checkpointing else 0.0
    trunk = (LINEAR + again) * shape.per_token * tokens + (ATTENTION + again) * shape.per_pair * pairs
    return trunk + LINEAR * shape.per_label * labels


def forward_operations(shape: Shape, tokens: float, labels: float, pairs: float) -> float:
    """A pass without gradient."""
    return shape.per_token * tokens + shape.per_label * labels + shape.per_pair * pairs


def publication(shape: Shape, device: Device, use: Use, width: int = 2) -> Phase:
    """New weights to the engines."""
    return _phase("publication", {"link": shape.parameters * width / (device.link * use.link)})
