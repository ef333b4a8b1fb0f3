"""Lock-step rounds as the alternative: one barrier per replica, as where each GPU's worker rolls out its own prompts.

All trajectories of a replica sample until the last has ended its segment, then all their calls run until the last is
answered. The gate is `bench.rollout_gate`'s, which real engines are compared with, too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.bench.rollout_gate import PhaseGate
from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.stats import EngineStats
from arpo.plan.simulation.engine import SimulatedEngine
from arpo.plan.simulation.tools import SimulatedToolBox
from arpo.tools.base import ToolContext, ToolResult
from arpo.tools.toolbox import ToolBox
from arpo.tree import Segment


class GatedEngine:
    """The engine, entered in the sampling phase of the group's replica. Implements `arpo.engine.base.Engine`."""

    def __init__(self, engine: SimulatedEngine, gates: Sequence[PhaseGate]) -> None:
        self._engine, self._gates = engine, gates

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """As the engine does, in its turn."""
        async with self._gates[self._engine.group(tokens) % len(self._gates)].within("sample"):
            return await self._engine.sample(tokens, params, seed)

    async def publish(self, weights: Any, version: int) -> None:
        await self._engine.publish(weights, version)

    def save(self, folder: Path) -> None:
        self._engine.save(folder)

    def load(self, folder: Path) -> None:
        self._engine.load(folder)

    async def close(self) -> None:
        await self._engine.close()


class GatedToolBox(ToolBox):
    """The tools, called in the tool phase of the group's replica."""

    def __init__(self, toolbox: SimulatedToolBox, gates: Sequence[PhaseGate]) -> None:
        super().__init__(toolbox.tools, toolbox.limits)
        self._box, self._gates = toolbox, gates

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """As the box does, in its turn."""
        async with self._gates[int(context.task_id) % len(self._gates)].within("tool"):
            return await self._box.call(name, arguments, context)
