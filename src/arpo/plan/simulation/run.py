"""One step's rollout in virtual time, from prompts to trees, and what the engine and the tools did meanwhile.

`rollout_many`, groups, branch budget, tool box and trees are those of training. `lockstep` lets sampling and tools take
turns instead (`simulation.lockstep`). Both draw the same trajectories from the same seed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arpo.bench.rollout_gate import PhaseGate
from arpo.plan.latency import Mix
from arpo.plan.phases import Replica
from arpo.plan.simulation.clock import run_virtual
from arpo.plan.simulation.engine import Server, SimulatedEngine
from arpo.plan.simulation.lockstep import GatedEngine, GatedToolBox
from arpo.plan.simulation.policy import Script, SimulatedDialect
from arpo.plan.simulation.tools import SimulatedTool, SimulatedToolBox
from arpo.plan.work import Trajectory
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.task import ask
from arpo.tree import RolloutTree

_TAIL = 0.9
"""A step is in full swing until so many of its answers have been given."""


_FULL = 0.75
"""Used to this share, a thing limits the rollout."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is simulated. `spread`: of lengths and calls, 0 for none; `repeat`: share of the calls that ask what others
    of their group ask; `certain`: how often entropy rises after a result.
    """

    rollout: RolloutSettings
    mean: Trajectory
    prompts: int
    replica: Replica
    replicas: int
    workers: int
    mix: Mix
    vocabulary: int = 151936
    window: int = 20
    spread: float = 0.6
    repeat: float = 0.0
    certain: float = 1.0
    lockstep: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds` of virtual time; shares between 0 and 1.

    `engine_idle`: of all replicas' time; `tools_idle`: of all workers' time; with `_full`: until nine of ten answers
    had been given; `rows`: sequences of a replica under way while it is busy; `engine_wait`, `tool_wait`: mean
    seconds in the queue; `pushed_out`: cached tokens that went for want of room; `tail`: share of the time after nine
    of ten answers; `slots`: sequences that one engine could run at once, with every trajectory under way.
    """

    seconds: float
    trajectories: int
    sampled: int
    unique: int
    requested: int
    executed: int
    branches: int
    top_ups: int
    engine_idle: float
    engine_idle_full: float
    tools_idle: float
    tools_idle_full: float
    rows: float
    engine_wait: float
    tool_wait: float
    prefilled: int
    reused: int
    pushed_out: int
    preempted: int
    tail: float
    requests: int
    slots: float

    @property
    def tokens_per_s(self) -> float:
        return self.sampled / self.seconds

    @property
    def rows_used(self) -> float:
        """Mean share of an engine's places that are taken, over all of the time."""
        return self.rows * (1 - self.engine_idle) / self.slots

    @property
    def limit(self) -> str:
        """Whatever was used to three quarters over the whole step: more of it would have helped. Where neither was, the
        trajectories are what takes time: their own tokens and calls, one after the other, above all in the tail. That
        an engine is never idle says little, since a single sequence keeps it busy.
        """
        used = {"engine": self.rows_used, "tools": 1 - self.tools_idle}
        most = max(used, key=lambda name: used[name])
        return most if used[most] > _FULL else "trajectories"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"tokens_per_s": self.tokens_per_s, "rows_used": self.rows_used, "limit": self.limit}


@dataclass(frozen=True)
class Simulated:
    """The trees, the engine, the tools: for tests that look inside."""

    outcome: Outcome
    trees: Sequence[RolloutTree]
    engine: SimulatedEngine
    toolbox: SimulatedToolBox
    tool: SimulatedTool


def simulate(scene: Scene) -> Simulated:
    """Roll out one step. Equal scenes give equal results."""
    return run_virtual(lambda: _simulate(scene))


async def _simulate(scene: Scene) -> Simulated:
    script = Script(scene.mean, scene.rollout.max_calls, spread=scene.spread, repeat=scene.repeat)
    longest = scene.mean.prompt + scene.rollout.max_tokens
    tool = SimulatedTool(scene.mix, scene.seed)
    servers = [Server(scene.replica) for _ in range(scene.replicas)]
    engine = SimulatedEngine(servers, script, longest, scene.certain, lambda: tool.busy)
    toolbox = SimulatedToolBox(tool, scene.workers)
    agent = _agent(scene, engine, toolbox, script)
    trees = await rollout_many(
        [ask("question", "answer", id=str(number)) for number in range(scene.prompts)],
        agent,
        settings=scene.rollout,
        entropy=EntropySettings(window=scene.window),
        seed_parts=("plan", scene.seed),
    )
    seconds = asyncio.get_running_loop().time()
    return Simulated(_outcome(scene, trees, engine, toolbox, tool, seconds), trees, engine, toolbox, tool)


def _agent(scene: Scene, engine: SimulatedEngine, toolbox: SimulatedToolBox, script: Script) -> Agent:
    dialect, gates = SimulatedDialect(script), [PhaseGate() for _ in range(scene.replicas)]
    if not scene.lockstep:
        return Agent(engine, dialect, toolbox, scene.vocabulary)
    return Agent(GatedEngine(engine, gates), dialect, GatedToolBox(toolbox, gates), scene.vocabulary)


def _outcome(
    scene: Scene,
    trees: Sequence[RolloutTree],
    engine: SimulatedEngine,
    toolbox: SimulatedToolBox,
    tool: SimulatedTool,
    seconds: float,
) -> Outcome:
    servers, stats = engine.servers, engine.stats
    full, busy, working = engine.ended[int(_TAIL * (len(engine.ended) - 1))]
    return Outcome(
        seconds=seconds,
        trajectories=sum(len(tree.leaves) for tree in trees),
        sampled=sum(tree.generated_tokens for tree in trees),
        unique=sum(len(segment) for tree in trees for segment in tree.segments),
        requested=sum(tree.requested_calls for tree in trees),
        executed=sum(tree.tool_calls for tree in trees),
        branches=sum(decision.opened for tree in trees for decision in tree.decisions),
        top_ups=sum(tree.top_ups for tree in trees),
        engine_idle=1 - stats.seconds / (seconds * len(servers)),
        engine_idle_full=1 - busy / (full * len(servers)),
        tools_idle=1 - tool.busy / (seconds * scene.workers),
        tools_idle_full=1 - working / (full * scene.workers),
        rows=sum(server.row_seconds for server in servers) / stats.seconds,
        engine_wait=sum(server.waited for server in servers) / stats.calls,
        tool_wait=(toolbox.in_system - tool.busy) / max(toolbox.asked, 1),
        prefilled=stats.prefilled_tokens,
        reused=stats.reused_tokens,
        pushed_out=sum(server.cache.pushed_out for server in servers),
        preempted=sum(server.preempted for server in servers),
        tail=1 - full / seconds,
        requests=stats.calls,
        slots=_slots(scene),
    )


def _slots(scene: Scene) -> float:
    groups = min(scene.prompts, scene.rollout.concurrency)
    return min(groups * scene.rollout.total / scene.replicas, float(scene.replica.rows))
