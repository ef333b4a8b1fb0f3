"""One line of the benchmark: from what was observed to ratios."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arpo.bench.work import Pass, Rates
from arpo.learn.packing import Packing
from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True)
class Timing:
    """One gradient: seconds on the clock and of the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Operations per second of the matrix product `form` (rows, inputs, outputs)."""

    form: tuple[int, int, int]
    per_second: float


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is known of one model and shape. Dictionaries by form; `rounds`: per round the timing of each form."""

    tree: RolloutTree
    rates: Rates
    passes: Mapping[Packing, Sequence[Pass]]
    peaks: Mapping[Packing, int | None]
    rounds: Sequence[Mapping[Packing, Timing]]
    speed: Speed
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRow:
    """The figures of one model and shape. A ratio is `padded`'s figure / the tree's, unless it names another form."""

    model: str
    shape: str
    rho: float
    flops_ratio: float
    flops_ratio_sequence: float
    speedup: float
    """Median over the rounds."""
    speedup_sequence: float
    speedup_over_flops_ratio: float
    speedup_over_flops_ratio_sequence: float
    spread: float
    """(largest - smallest speed-up of a round) / median."""
    speedup_least: float
    speedup_most: float
    speedup_cpu: float
    """The median in CPU seconds of the process: what to read on a machine that others use too."""
    speedup_cpu_sequence: float
    memory_ratio: float | None
    gemm_share: float
    """Counted work of the tree / its seconds / `gemm_speed`."""
    gemm_share_padded: float
    gemm_speed: float
    """Operations per second of the matrix product in which the model spends most of its work."""
    gemm_form: tuple[int, int, int]
    """Its rows, inputs, outputs."""
    seconds_tree: float
    seconds_sequence: float
    seconds_padded: float
    seconds_step: float
    """The optimiser's step, which is not in the others."""
    work_tree: float
    work_sequence: float
    work_padded: float
    bytes_tree: int | None
    bytes_sequence: int | None
    bytes_padded: int | None
    tokens_per_s: float
    """Trajectory tokens that the tree's gradient gets through per second."""
    unique_tokens: int
    flat_tokens: int
    computed_tree: int
    computed_sequence: int
    padded_tokens: int
    """Through the model, by form, padding included. What follows the last sampled token predicts nothing and is left
    out; a tree that exceeds `micro_tokens` is divided and computes the tokens above the cut again."""
    passes_tree: int
    micro_tokens: int
    """Budget of one pass, for all forms."""
    threads: int
    torch: str
    device: str
    device_name: str
    dtype: str
    rounds: int


def update_row(seen: Observed, **names: Any) -> UpdateRow:
    """The row of `seen`. `names`: what it belongs to (model, shape, micro_tokens, device, device_name, dtype)."""
    work = {form: seen.rates.gradient(passes) for form, passes in seen.passes.items()}
    seconds = {form: statistics.median(one[form].wall for one in seen.rounds) for form in work}
    flat = sum(map(len, seen.tree.paths()))
    peaks = seen.peaks
    return UpdateRow(
        **names,
        **_ratios(seen, work),
        rho=seen.tree.sharing,
        memory_ratio=peaks["padded"] / peaks["tree"] if peaks["padded"] and peaks["tree"] else None,
        gemm_share=work["tree"] / seconds["tree"] / seen.speed.per_second,
        gemm_share_padded=work["padded"] / seconds["padded"] / seen.speed.per_second,
        gemm_speed=seen.speed.per_second,
        gemm_form=seen.speed.form,
        seconds_step=seen.step_seconds,
        **_by_form("seconds", seconds),
        **_by_form("work", work),
        **_by_form("bytes", peaks),
        tokens_per_s=flat / seconds["tree"],
        unique_tokens=sum(map(len, seen.tree.segments)),
        flat_tokens=flat,
        computed_tree=_tokens(seen, "tree"),
        computed_sequence=_tokens(seen, "sequence"),
        padded_tokens=_tokens(seen, "padded"),
        passes_tree=len(seen.passes["tree"]),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        rounds=len(seen.rounds),
    )


def _ratios(seen: Observed, work: Mapping[Packing, float]) -> dict[str, Any]:
    """Of work and of time, against both other forms."""
    flops_ratio, flops_ratio_sequence = (work[form] / work["tree"] for form in ("padded", "sequence"))
    wall, wall_sequence, cpu, cpu_sequence = (
        [getattr(one[form], clock) / getattr(one["tree"], clock) for one in seen.rounds]
        for clock in ("wall", "cpu")
        for form in ("padded", "sequence")
    )
    speedup, speedup_sequence = statistics.median(wall), statistics.median(wall_sequence)
    return {
        "flops_ratio": flops_ratio,
        "flops_ratio_sequence": flops_ratio_sequence,
        "speedup": speedup,
        "speedup_sequence": speedup_sequence,
        "speedup_over_flops_ratio": speedup / flops_ratio,
        "speedup_over_flops_ratio_sequence": speedup_sequence / flops_ratio_sequence,
        "spread": (max(wall) - min(wall)) / speedup,
        "speedup_least": min(wall),
        "speedup_most": max(wall),
        "speedup_cpu": statistics.median(cpu),
        "speedup_cpu_sequence": statistics.median(cpu_sequence),
    }


def _by_form(what: str, values: Mapping[Packing, Any]) -> dict[str, Any]:
    return {f"{what}_{form}": value for form, value in values.items()}


def _tokens(seen: Observed, form: Packing) -> int:
    return sum(one.tokens for one in seen.passes[form])
