"""What a call of the Python tool costs: our sandboxes against a fresh interpreter, side by side.

A round lets every arm make its calls, first one after another, then a number at once; in an order that turns from round
to round, so that a machine that slows down for a minute slows all. Each round gives one ratio per arm; a row holds the
median and how far the rounds lie apart. Before the rounds every arm makes two calls, to be warm.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from arpo.bench.tools_arms import Arm, baseline, opened
from arpo.errors import ConfigError, ToolSetupError

PARTS = ("sandbox", "search")
BACKENDS = ("namespace", "landlock", "monty", "bwrap")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSetting:
    """What to measure. `calls`: of a fast arm per round and way; `slow_calls`: of one that starts an interpreter;
    `parallel`: calls at once.
    """

    backends: tuple[str, ...] = BACKENDS
    rounds: int = 5
    calls: int = 40
    slow_calls: int = 6
    parallel: int = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRow:
    """One way to run code. Medians over the rounds; latencies in milliseconds, over all calls of the rounds; ratios
    are calls per second of this / of a fresh interpreter in a plain subprocess, of the same round.
    """

    backend: str
    isolation: str
    note: str
    """Why it was not measured; empty if it was."""
    calls_per_s: float | None = None
    """One call after another."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    ratio: float | None = None
    ratio_least: float | None = None
    ratio_most: float | None = None
    parallel: int = 0
    calls_per_s_together: float | None = None
    """`parallel` calls at once."""
    p50_ms_together: float | None = None
    p95_ms_together: float | None = None
    ratio_together: float | None = None
    ratio_together_least: float | None = None
    ratio_together_most: float | None = None
    cpu_ms: float | None = None
    """CPU time of a call's processes, calls one after another; what to read on a machine that others use too."""
    seconds_start: float | None = None
    """Until it is ready for its first call."""
    rounds: int = 0
    calls: int = 0
    """Per round, and as often again at once."""


@dataclass(slots=True)
class _Measured:
    """Of one arm, a value per round, or per call. `alone`, `together`: seconds of each call."""

    rate: list[float] = field(default_factory=list)
    rate_together: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure_sandboxes(setting: SandboxSetting, say: Say) -> Iterator[SandboxRow]:
    """A row per backend, and one of the subprocess that they are compared with. Raises ConfigError, ArpoError."""
    _check(setting)
    arms: list[Arm] = [baseline()]
    starts, missing = [0.0], []
    try:
        for name in setting.backends:
            say(f"sandbox: starting {name}")
            started = time.perf_counter()
            try:
                arms.append(opened(name))
                starts.append(time.perf_counter() - started)
            except ToolSetupError as error:
                missing.append(SandboxRow(backend=name, isolation="", note=str(error)))
        measured = asyncio.run(_rounds(arms, setting, say))
        for arm, seconds, one in zip(arms, starts, measured, strict=True):
            yield _row(arm, seconds, one, measured[0], setting)
        yield from missing
    finally:
        for arm in arms:
            arm.close()


def _check(setting: SandboxSetting) -> None:
    for name in setting.backends:
        if name not in BACKENDS:
            raise ConfigError(f"--backends {name}: known are {', '.join(BACKENDS)}")
    for key in ("rounds", "calls", "slow_calls", "parallel"):
        if getattr(setting, key) < 1:
            raise ConfigError(f"--{key.replace('_', '-')} {getattr(setting, key)}: at least one is needed")


async def _rounds(arms: Sequence[Arm], setting: SandboxSetting, say: Say) -> list[_Measured]:
    measured = [_Measured() for _ in arms]
    for arm in arms:
        for _ in range(2):
            await arm.call()
    for number in range(setting.rounds):
        say(f"sandbox: round {number + 1} of {setting.rounds}")
        for place in range(len(arms)):
            which = (place + number) % len(arms)
            await _round(arms[which], measured[which], setting)
    return measured


async def _round(arm: Arm, measured: _Measured, setting: SandboxSetting) -> None:
    calls = setting.slow_calls if arm.slow else setting.calls
    started = time.perf_counter()
    for _ in range(calls):
        seconds, cpu = await _timed(arm)
        measured.alone.append(seconds)
        if cpu is not None:
            measured.cpu.append(cpu)
    measured.rate.append(calls / (time.perf_counter() - started))
    places = asyncio.Semaphore(setting.parallel)

    async def one() -> None:
        async with places:
            measured.together.append((await _timed(arm))[0])

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(max(calls, setting.parallel))))
    measured.rate_together.append(max(calls, setting.parallel) / (time.perf_counter() - started))


async def _timed(arm: Arm) -> tuple[float, float | None]:
    started = time.perf_counter()
    cpu = await arm.call()
    return time.perf_counter() - started, cpu


def _row(arm: Arm, start: float, one: _Measured, other: _Measured, setting: SandboxSetting) -> SandboxRow:
    ratios = [a / b for a, b in zip(one.rate, other.rate, strict=True)]
    together = [a / b for a, b in zip(one.rate_together, other.rate_together, strict=True)]
    return SandboxRow(
        backend=arm.name,
        isolation=arm.isolation,
        note="",
        calls_per_s=statistics.median(one.rate),
        p50_ms=percentile(one.alone, 0.5),
        p95_ms=percentile(one.alone, 0.95),
        ratio=statistics.median(ratios),
        ratio_least=min(ratios),
        ratio_most=max(ratios),
        parallel=setting.parallel,
        calls_per_s_together=statistics.median(one.rate_together),
        p50_ms_together=percentile(one.together, 0.5),
        p95_ms_together=percentile(one.together, 0.95),
        ratio_together=statistics.median(together),
        ratio_together_least=min(together),
        ratio_together_most=max(together),
        cpu_ms=statistics.mean(one.cpu) * 1e3 if one.cpu else None,
        seconds_start=start,
        rounds=setting.rounds,
        calls=setting.slow_calls if arm.slow else setting.calls,
    )


def parts(text: str) -> tuple[str, ...]:
    """Comma-separated names of what is to be measured. Raises ConfigError for an unknown one, and for none."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not set(names) <= set(PARTS):
        raise ConfigError(f"--what {text}: name {' or '.join(PARTS)}, or both")
    return names


def percentile(seconds: Sequence[float], share: float) -> float:
    """In milliseconds: the smallest that `share` of them do not exceed."""
    ordered = sorted(seconds)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3
