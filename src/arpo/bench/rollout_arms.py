"""What takes turns in a benchmark of rollouts: an arm rolls a job out in its own way and says what that took.

Every run starts from a cold cache (publishing the weights drops the engine's), draws from the seed of its round and
meets the same tasks and the same latencies as the other arms of that round. Each run has an event loop of its own.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from arpo.bench.rollout_gate import GatedEngine, GatedToolBox, PhaseGate
from arpo.bench.rollout_generate import GenerateRollout
from arpo.bench.rollout_tools import Latency, delayed
from arpo.engine.local import LocalEngine, make_engine
from arpo.engine.settings import LocalSettings
from arpo.engine.stats import EngineStats
from arpo.protocol.base import Dialect
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import SeedParts, rollout, rollout_many, together
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import Task
from arpo.tools.toolbox import ToolBox
from arpo.tree import RolloutTree

Entropy = Literal["exact", "none"]


@dataclass(frozen=True)
class Subject:
    """A policy with its tools, and the rollouts that it is measured on. `tasks`: as many as the longest run takes."""

    name: str
    model: Any
    tokenizer: Any
    dialect: Dialect
    toolbox: ToolBox
    tasks: Sequence[Task]
    rollout: RolloutSettings
    entropy: EntropySettings
    engine: LocalSettings

    def independent(self) -> RolloutSettings:
        """The same number of trajectories, none of them a branch."""
        return RolloutSettings(**(dict(self.rollout) | {"initial": self.rollout.total, "branching": NoBranching()}))

    def make_engine(self, entropy: Entropy = "exact") -> LocalEngine:
        """A fresh engine on the subject's model."""
        return make_engine(self.model, self.tokenizer, self.engine.model_copy(update={"entropy": entropy}))

    def agent(self, engine: Any, toolbox: ToolBox) -> Agent:
        return Agent(engine, self.dialect, toolbox, int(self.model.get_output_embeddings().weight.shape[0]))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of an arm took and gave.

    `wall`, `cpu`: seconds on the clock and of the process; `busy`: seconds in the model. Tokens: `sampled`, `unique`
    (in the trees), `computed` (positions through the model). Calls: `requested` and answered, `executed`.
    """

    wall: float
    cpu: float
    busy: float
    trajectories: int
    sampled: int
    unique: int
    computed: int
    requested: int
    executed: int

    @property
    def idle(self) -> float:
        """Share of the time in which the model computes nothing."""
        return 1 - self.busy / self.wall


class Arm(Protocol):
    """One way to roll out."""

    def run(self, tasks: Sequence[Task], number: int) -> Run:
        """Roll `tasks` out with the seed of round `number`."""
        ...


class SchedulerArm:
    """Our own rollout; `lockstep` puts the phase gate around it."""

    def __init__(
        self,
        subject: Subject,
        latency: Latency,
        settings: RolloutSettings,
        *,
        lockstep: bool = False,
        entropy: Entropy = "exact",
    ) -> None:
        self.subject, self.latency, self.settings, self.lockstep = subject, latency, settings, lockstep
        self.engine = subject.make_engine(entropy)

    def run(self, tasks: Sequence[Task], number: int) -> Run:
        return asyncio.run(self._run(tasks, number))

    async def _run(self, tasks: Sequence[Task], number: int) -> Run:
        await _reset(self.engine, self.subject)
        agent = self._agent()
        wall, cpu = time.perf_counter(), time.process_time()
        trees = await rollout_many(
            tasks,
            agent,
            settings=self.settings,
            entropy=self.subject.entropy,
            seed_parts=("bench", number),
        )
        return _run_of(trees, self.engine.stats, time.perf_counter() - wall, time.process_time() - cpu)

    def _agent(self) -> Agent:
        toolbox = delayed(self.subject.toolbox, self.latency)
        if not self.lockstep:
            return self.subject.agent(self.engine, toolbox)
        gate = PhaseGate()
        return self.subject.agent(GatedEngine(self.engine, gate), GatedToolBox(toolbox, gate))


class GenerateArm:
    """transformers' `generate`, turn by turn, on the same number of independent trajectories."""

    def __init__(self, subject: Subject, latency: Latency) -> None:
        self.subject, self.latency = subject, latency
        self.settings = subject.independent()

    def run(self, tasks: Sequence[Task], number: int) -> Run:
        one = self.subject
        toolbox = delayed(one.toolbox, self.latency)
        rollout = GenerateRollout(one.model, one.tokenizer, one.dialect, toolbox, self.settings)
        wall, cpu = time.perf_counter(), time.process_time()
        lines = asyncio.run(rollout.run(tasks, ("bench", number)))
        return Run(
            wall=time.perf_counter() - wall,
            cpu=time.process_time() - cpu,
            busy=rollout.seconds,
            trajectories=len(lines),
            sampled=sum(line.sampled for line in lines),
            unique=sum(len(line.tokens) for line in lines) - self._shared(tasks),
            computed=rollout.computed,
            requested=rollout.requested,
            executed=rollout.requested,
        )

    def _shared(self, tasks: Sequence[Task]) -> int:
        """Tokens of the prompts that stand in more than one trajectory."""
        return sum(len(self.subject.dialect.prompt(task)) for task in tasks) * (self.settings.total - 1)


@dataclass(frozen=True, slots=True)
class Steady:
    """A long run with a fixed number of prompts in flight. `full`: while they all were, until the first place stayed
    empty; `whole`: to the end."""

    full: float
    whole: Run


def steady(subject: Subject, latency: Latency, tasks: Sequence[Task], in_flight: int) -> Steady:
    """Roll `tasks` out with `in_flight` prompts at once; `full` is the engine's idle share while none was missing."""
    return asyncio.run(_steady(subject, latency, tasks, in_flight))


async def _steady(subject: Subject, latency: Latency, tasks: Sequence[Task], in_flight: int) -> Steady:
    engine = subject.make_engine()
    agent = subject.agent(engine, delayed(subject.toolbox, latency))
    gate, left = asyncio.Semaphore(in_flight), len(tasks)
    marks: list[tuple[float, float]] = []

    async def one(task: Task) -> RolloutTree:
        nonlocal left
        async with gate:
            tree = await rollout(task, agent, settings=subject.rollout, entropy=subject.entropy, seed_parts=_STEADY)
        left -= 1
        if left < in_flight:
            marks.append((time.perf_counter() - wall, engine.stats.seconds))
        return tree

    wall, cpu = time.perf_counter(), time.process_time()
    trees = await together(one(task) for task in tasks)
    whole = _run_of(trees, engine.stats, time.perf_counter() - wall, time.process_time() - cpu)
    seconds, busy = marks[0]
    return Steady(1 - busy / seconds, whole)


_STEADY: SeedParts = ("bench", "steady")


async def _reset(engine: LocalEngine, subject: Subject) -> None:
    await engine.publish(subject.model, engine.version + 1)
    engine.stats = EngineStats()


def _run_of(trees: Sequence[RolloutTree], stats: EngineStats, wall: float, cpu: float) -> Run:
    return Run(
        wall=wall,
        cpu=cpu,
        busy=stats.seconds,
        trajectories=sum(len(tree.leaves) for tree in trees),
        sampled=sum(tree.generated_tokens for tree in trees),
        unique=sum(len(segment) for tree in trees for segment in tree.segments),
        computed=stats.computed_tokens,
        requested=sum(tree.requested_calls for tree in trees),
        executed=sum(tree.tool_calls for tree in trees),
    )
