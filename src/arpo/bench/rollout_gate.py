"""Lock-step rounds on the same scheduler: sampling and tools take turns, and each turn waits for the slowest.

This is how rollouts with tools are done elsewhere: all trajectories sample until the last one has ended its segment,
then all their tools run until the last one has answered. Put around engine and tools, the gate makes our own scheduler
behave like that; everything else stays the same, and so do the trajectories, so what it costs is the waiting alone.

A phase is over when nobody is inside and nobody of those who have just left comes back. Whoever was answered runs in
one of the next turns of the event loop, so the gate lets a few of them pass before it opens to the other phase.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from arpo.engine.base import Capabilities, Engine, SampleParams
from arpo.engine.stats import EngineStats
from arpo.tools.base import ToolContext, ToolResult
from arpo.tools.toolbox import ToolBox
from arpo.tree import Segment

Phase = Literal["sample", "tool"]
_OTHER: dict[Phase, Phase] = {"sample": "tool", "tool": "sample"}
_TURNS = 8
"""Turns of the event loop after which who was answered has asked again, if at all."""


class PhaseGate:
    """Lets in requests of one phase at a time. Belongs to one event loop."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self._inside = 0
        self._turns = 0
        self._ticking = False
        self._waiting: dict[Phase, list[asyncio.Future[None]]] = {"sample": [], "tool": []}

    @asynccontextmanager
    async def within(self, phase: Phase) -> AsyncIterator[None]:
        """Wait until it is the turn of `phase`, and count as inside until the block is over."""
        await self._enter(phase)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, phase: Phase) -> None:
        if self.phase in (None, phase):
            self.phase = phase
            self._inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[phase].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it had just been let in
            elif turn in self._waiting[phase]:  # else the phase has begun without it
                self._waiting[phase].remove(turn)
            raise

    def _leave(self) -> None:
        self._inside -= 1
        self._turns = _TURNS
        if not self._inside and not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if self._inside or self.phase is None:
            return
        self._turns -= 1
        if self._turns > 0:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)
        else:
            self._turn_over(_OTHER[self.phase])

    def _turn_over(self, phase: Phase) -> None:
        """Let in everybody who waits for the other phase; without anybody whoever comes next may choose."""
        waiting, self._waiting[phase] = self._waiting[phase], []
        admitted = [turn for turn in waiting if not turn.done()]
        self.phase = phase if admitted else None
        self._inside = len(admitted)
        for turn in admitted:
            turn.set_result(None)


class GatedEngine:
    """An engine that samples in the sampling phase only. Implements `arpo.engine.base.Engine`."""

    def __init__(self, engine: Engine, gate: PhaseGate) -> None:
        self._engine, self._gate = engine, gate

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
        async with self.gate_of(tokens).within("sample"):
            return await self._engine.sample(tokens, params, seed)

    def gate_of(self, tokens: Sequence[int]) -> PhaseGate:
        """The gate that a prefix waits at."""
        return self._gate

    async def publish(self, weights: Any, version: int) -> None:
        await self._engine.publish(weights, version)

    def save(self, folder: Path) -> None:
        self._engine.save(folder)

    def load(self, folder: Path) -> None:
        self._engine.load(folder)

    async def close(self) -> None:
        await self._engine.close()


class GatedToolBox(ToolBox):
    """The tools of another box, called in the tool phase only."""

    def __init__(self, toolbox: ToolBox, gate: PhaseGate) -> None:
        super().__init__(toolbox.tools, toolbox.limits)
        self._gate = gate

    async def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """As the box does, in its turn."""
        async with self._gate.within("tool"):
            return await super().call(name, arguments, context)
