"""The state that a trajectory's tools keep between its calls, and what becomes of it where the trajectory branches.

A session is the log of the calls that had an effect; the live state of an environment is no more than a cache of
having replayed that log. So a branch takes a copy of the log, and everything else follows: it never shares state with
its siblings, it builds its own when it first needs it, and a call that was answered from an equal one, without being
run, is caught up with before the next one runs. An environment that can copy its state spares the replay. A call that
timed out or failed has no effect: the state that it may have left half-changed is dropped and built again without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from arpo.tools.base import ToolContext, ToolResult

Fork = Literal["replay", "copy", "refuse"]
"""Where a trajectory branches: the branch replays the calls so far, or gets a copy of the state, or cannot be."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call that had an effect. `environment`: whose; `seed`: the call's, used again when it is replayed."""

    environment: str
    tool: str
    arguments: Mapping[str, Any]
    seed: int


class Environment(Protocol):
    """State behind one or more tools, one per trajectory. Its tools carry it as their attribute `environment`."""

    name: str
    fork: Fork

    async def start(self, context: ToolContext) -> Any:
        """A fresh state."""
        ...

    async def step(self, state: Any, tool: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | str:
        """Run a call on the state, changing it. With "replay", equal steps from a fresh state give an equal state."""
        ...

    def copy(self, state: Any) -> Any:
        """A state of its own that is equal; only asked of `fork = "copy"`."""
        ...

    async def end(self, state: Any) -> None:
        """Release what the state holds."""
        ...


def environment_of(tool: Any) -> Environment | None:
    """What the calls of the tool in one trajectory build on; None if they do not."""
    return getattr(tool, "environment", None)


@dataclass(eq=False, slots=True)
class _Live:
    environment: Environment
    state: Any
    applied: int
    """Steps of the log that the state contains, of all environments."""


class Session:
    """The state of one trajectory's tools. One call at a time."""

    def __init__(self, steps: tuple[Step, ...] = ()) -> None:
        self._steps = list(steps)
        self._live: dict[str, _Live] = {}

    def steps(self, environment: str) -> list[Step]:
        """The calls so far that had an effect on that environment."""
        return [step for step in self._steps if step.environment == environment]

    def append(self, step: Step) -> None:
        """Log a call that was answered with an effect, whether it ran here or an equal one elsewhere."""
        self._steps.append(step)

    async def run(
        self, environment: Environment, tool: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | str:
        """Run a call on the environment's state; `append` is to follow if it had an effect."""
        live = await self._caught_up(environment, context)
        try:
            result = await environment.step(live.state, tool, arguments, context)
        except BaseException:
            await self._drop(environment.name)
            raise
        live.applied = len(self._steps) + 1
        return result

    async def _caught_up(self, environment: Environment, context: ToolContext) -> _Live:
        live = self._live.get(environment.name)
        if live is not None and live.applied > len(self._steps):  # its last call was not logged: it had no effect
            await self._drop(environment.name)
            live = None
        if live is None:
            live = self._live[environment.name] = _Live(environment, await environment.start(context), 0)
        try:
            for step in self._steps[live.applied :]:
                if step.environment == environment.name:
                    again = replace(context, seed=step.seed)
                    await environment.step(live.state, step.tool, step.arguments, again)
        except BaseException:
            await self._drop(environment.name)
            raise
        live.applied = len(self._steps)
        return live

    async def _drop(self, name: str) -> None:
        live = self._live.pop(name, None)
        if live is not None:
            await live.environment.end(live.state)

    def fork(self) -> "Session":
        """The session of a branch that opens here."""
        child = Session(tuple(self._steps))
        for name, live in self._live.items():
            if live.environment.fork == "copy" and live.applied == len(self._steps):
                child._live[name] = replace(live, state=live.environment.copy(live.state))
        return child

    async def close(self) -> None:
        """Release all states."""
        for name in list(self._live):
            await self._drop(name)
