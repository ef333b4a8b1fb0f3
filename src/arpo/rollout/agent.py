"""What acts in a rollout: an engine, the language that it speaks, and the tools that it may call."""

from dataclasses import dataclass

from arpo.engine.base import Engine
from arpo.protocol.base import Dialect
from arpo.tools.toolbox import ToolBox


@dataclass(frozen=True)
class Agent:
    """Everything between weights and a trajectory. `vocab_size`: tokens in the policy's distribution (>= 2)."""

    engine: Engine
    dialect: Dialect
    toolbox: ToolBox
    vocab_size: int

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release connections and processes of the engine and the tools."""
        await self.engine.close()
        await self.toolbox.close()
