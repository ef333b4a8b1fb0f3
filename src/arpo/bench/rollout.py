"""The rollout, timed against other ways to do it, side by side.

Pairs, each in one process and in turns, in an order that changes from round to round, so that a machine that slows down
for a minute slows both. A round gives one ratio; the row holds their median and how far they lie apart. Before the
rounds each arm runs once, to be warm and to have its peak of memory observed.

`lockstep`: the same scheduler behind a gate that lets sampling and tools take turns. Both draw the same trajectories,
so the ratio is that of waiting. `generate`: transformers' `generate` on whole prefixes, turn by turn, against our
rollout of as many independent trajectories; the samples differ, so rates of tokens are compared too.

The overhead of exact entropy is that of generating the same tokens with it and without, independent trajectories and
tools that answer at once, in seconds of the engine. The idle share that matters for long runs is measured apart: with
always `in_flight` prompts under way, until the first of their places stays empty.
"""

import ctypes
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from arpo.bench.peaks import peak_bytes
from arpo.bench.rollout_arms import Arm, GenerateArm, Run, SchedulerArm, Subject, steady
from arpo.bench.rollout_rows import Pair, RolloutRow, rollout_row
from arpo.bench.rollout_tools import HEAVY, Latency, parse_latency
from arpo.errors import ConfigError

VERSUS = ("lockstep", "generate")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RolloutSetting:
    """How to measure. `prompts` per run; `in_flight`: prompts at once where the idle share of a long run is measured
    (where latencies vary), over `long` prompts, or None; `entropy_rounds`: pairs with and without entropy, on half
    of the prompts; 0: none."""

    prompts: int
    rounds: int
    tools: tuple[Latency, ...] = (Latency("0", 0.0), HEAVY)
    versus: tuple[str, ...] = VERSUS
    in_flight: int | None = None
    long: int = 0
    entropy_rounds: int = 0
    memory: bool = True

    @property
    def tasks(self) -> int:
        """Tasks that the longest run takes."""
        return max(self.prompts, self.long if self.in_flight else 0)


def measure_rollouts(subject: Subject, setting: RolloutSetting, say: Say) -> Iterator[RolloutRow]:
    """One row per kind of tools and other arm; `say` hears what is being done."""
    if setting.rounds < 1:
        raise ConfigError(f"--rounds {setting.rounds}: at least one is needed")
    overhead = _entropy_overhead(subject, setting, say) if setting.entropy_rounds else None
    for latency in setting.tools:
        full = _full(subject, setting, latency, say)
        for versus in setting.versus:
            yield _row(subject, setting, latency, versus, say, idle_share_full=full, entropy_overhead=overhead)


def _row(
    subject: Subject,
    setting: RolloutSetting,
    latency: Latency,
    versus: str,
    say: Say,
    *,
    idle_share_full: float | None,
    entropy_overhead: float | None,
) -> RolloutRow:
    arms, where = _arms(subject, latency, versus), f"{subject.name}, tools {latency.name}"
    tasks = subject.tasks[: setting.prompts]
    peaks: list[int | None] = []
    for arm, name in zip(arms, ("ours", versus), strict=True):
        say(f"{where}: {name}, observed once")
        peaks.append(_observe(arm, subject, setting))
    pairs = []
    for number in range(setting.rounds):
        say(f"{where} against {versus}: round {number + 1} of {setting.rounds}")
        pairs.append(Pair(*in_turns(arms, lambda arm, n=number: arm.run(tasks, n), number)))  # type: ignore[misc]
    return rollout_row(
        pairs,
        model=subject.name,
        tools=latency.name,
        versus=versus,
        idle_share_full=idle_share_full,
        entropy_overhead=entropy_overhead,
        bytes_peak=peaks[0],
        bytes_peak_versus=peaks[1],
        prompts=setting.prompts,
        group=_group(subject, versus),
        in_flight=setting.in_flight if idle_share_full is not None else None,
        max_tokens=subject.rollout.max_tokens,
        device=str(subject.model.device),
        dtype=str(subject.model.dtype).removeprefix("torch."),
    )


def in_turns(arms: Sequence[Arm], run: Callable[[Arm], Run], number: int) -> list[Run]:
    """A run of every arm, in an order that turns with the number of the round; the results in the order of `arms`."""
    order = list(range(len(arms)))
    if number % 2:
        order.reverse()
    runs = {place: run(arms[place]) for place in order}
    return [runs[place] for place in range(len(arms))]


def _arms(subject: Subject, latency: Latency, versus: str) -> tuple[Arm, Arm]:
    if versus == "lockstep":
        return (
            SchedulerArm(subject, latency, subject.rollout),
            SchedulerArm(subject, latency, subject.rollout, lockstep=True),
        )
    return SchedulerArm(subject, latency, subject.independent()), GenerateArm(subject, latency)


def _group(subject: Subject, versus: str) -> str:
    initial, total = subject.rollout.initial, subject.rollout.total
    return f"{initial}+{total - initial}" if versus == "lockstep" else f"{total}+0"


def _observe(arm: Arm, subject: Subject, setting: RolloutSetting) -> int | None:
    """The arm's first run; the memory that it took at its peak."""
    tasks = subject.tasks[: setting.prompts]
    if not setting.memory:
        arm.run(tasks, -1)
        return None
    _give_back_freed_memory()
    return peak_bytes(lambda: arm.run(tasks, -1), subject.model.device)


def _give_back_freed_memory() -> None:
    """Let glibc's allocator return what earlier runs have freed, or it would hide what this one takes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _full(subject: Subject, setting: RolloutSetting, latency: Latency, say: Say) -> float | None:
    """The idle share while all `in_flight` prompts are under way, where latencies vary."""
    if setting.in_flight is None or not latency.sigma:
        return None
    say(f"{subject.name}, tools {latency.name}: {setting.in_flight} of {setting.long} prompts in flight")
    return steady(subject, latency, subject.tasks[: setting.long], setting.in_flight).full


def _entropy_overhead(subject: Subject, setting: RolloutSetting, say: Say) -> float:
    """Median over the rounds of seconds of generation with entropy / without, less 1."""
    at_once, settings = Latency("0", 0.0), subject.independent()
    arms = [SchedulerArm(subject, at_once, settings, entropy=entropy) for entropy in ("exact", "none")]
    tasks = subject.tasks[: max(1, setting.prompts // 2)]
    for arm in arms:
        arm.run(tasks, -1)
    ratios = []
    for number in range(setting.entropy_rounds):
        say(f"{subject.name}: entropy on and off, round {number + 1} of {setting.entropy_rounds}")
        on, off = in_turns(arms, lambda arm, n=number: arm.run(tasks, n), number)  # type: ignore[misc]
        ratios.append(on.busy / off.busy)
    return statistics.median(ratios) - 1


def parse_tools(text: str) -> tuple[Latency, ...]:
    """Comma-separated latencies."""
    return tuple(parse_latency(one) for one in text.split(","))


def parse_versus(text: str) -> tuple[str, ...]:
    """Comma-separated names of arms. Raises ConfigError for an unknown one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in VERSUS:
            raise ConfigError(
                f"--versus {name}: known are {' and '.join(VERSUS)}; TRL has a target of its own: make bench-trl"
            )
    if not names:
        raise ConfigError(f"--versus: name at least one of {' and '.join(VERSUS)}")
    return names
