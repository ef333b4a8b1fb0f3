"""Lock-step rounds as the alternative: one barrier per replica, as where each GPU's worker rolls out its own prompts.

All trajectories of a replica sample until the last has ended its segment, then all their calls run until the last is
answered. The gate is `bench.rollout_gate`'s, which real engines are compared with, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from arpo.bench import rollout_gate
from arpo.bench.rollout_gate import PhaseGate
from arpo.plan.simulation.engine import SimulatedEngine
from arpo.plan.simulation.tools import SimulatedToolBox
from arpo.tools.base import ToolContext, ToolResult
from arpo.tools.toolbox import ToolBox


class GatedEngine(rollout_gate.GatedEngine):
    """The engine, entered in the sampling phase of the group's replica."""

    def __init__(self, engine: SimulatedEngine, gates: Sequence[PhaseGate]) -> None:
        super().__init__(engine, gates[0])
        self._simulated, self._gates = engine, gates

    def gate_of(self, tokens: Sequence[int]) -> PhaseGate:
        """That of the replica."""
        return self._gates[self._simulated.group(tokens) % len(self._gates)]


class GatedToolBox(ToolBox):
    """The tools, called in the tool phase of the group's replica."""

    def __init__(self, toolbox: SimulatedToolBox, gates: Sequence[PhaseGate]) -> None:
        super().__init__(toolbox.tools, toolbox.limits)
        self._box, self._gates = toolbox, gates

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """As the box does, in its turn."""
        async with self._gates[int(context.task_id) % len(self._gates)].within("tool"):
            return await self._box.call(name, arguments, context)
