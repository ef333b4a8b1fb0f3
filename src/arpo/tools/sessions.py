"""The state that a trajectory's tools keep between its calls, and what becomes of it where the trajectory branches.

A session is the log of the calls that had an effect; the live state of an environment is no more than a cache of
having replayed that log. So a branch takes a copy of the log, and everything else follows: it never shares state with
its siblings, it builds its own when it first needs it, and a call that was answered from an equal one, without being
run, is caught up with before the next one runs.

A call that timed out or failed has no effect: the state that it may have left half-changed is dropped and built again
without it. While a call runs its state belongs to it alone, and comes back only if the call ends before the next one
begins; so one that was given up and goes on all the same changes nothing that anybody looks at.

An environment that can copy its state spares the replay where a trajectory branches: the branch points to the same
state, and whoever is the first to change it copies it. Branches that are prepared and never open thus cost nothing.

What an environment gets to know of a call is what a replay can know too: task, question, seed, and which of its calls
it is. Its start is drawn from the task, so all trajectories of a group begin alike. Building a state does not count
against the time limit of the call that needs it; it may take that limit once per call that is replayed, and once for
the start.

With `fork = "refuse"` nothing is ever replayed: the state is what a failed call left of it, and a branch has none.
"""

import asyncio
import copy
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from arpo.seeds import derive
from arpo.tools.base import ToolContext, ToolResult
from arpo.tools.results import told
from arpo.tools.running import extra_time

log = logging.getLogger(__name__)
Fork = Literal["replay", "copy", "refuse"]
"""Where a trajectory branches: the branch replays the calls so far, or gets a copy of the state, or cannot be."""
PATIENCE = 5.0
"""Seconds that releasing a state may take before it is left to itself."""


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
        """A fresh state; equal for an equal task and seed."""
        ...

    async def step(self, state: Any, tool: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | str:
        """Run a call on the state, changing it. Unless `fork = "refuse"`, equal steps lead to equal states.

        A call at fault is a result (`tool_error`), which belongs to the log; what is raised has no effect.
        """
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


def cannot_fork(tool: Any) -> bool:
    """Whether the tool keeps a state that can neither be copied nor replayed."""
    environment = environment_of(tool)
    return environment is not None and environment.fork == "refuse"


async def run_in_session(
    environment: Environment, tool: str, arguments: Mapping[str, Any], context: ToolContext
) -> ToolResult | str:
    """Run a call on the trajectory's state; without a trajectory, on a fresh one that ends with the call."""
    if context.session is not None:
        return await context.session.run(environment, tool, arguments, context)
    session = Session()
    try:
        return await session.run(environment, tool, arguments, context)
    finally:
        await session.close()


class _Live:
    """A state. `applied`: steps of its log that it contains; `pending`: a call that it contains and that is not logged
    (yet); `holders`: sessions that point to it; with more than one it must not change.
    """

    def __init__(self, environment: Environment, state: Any, applied: int) -> None:
        self.environment, self.state, self.applied = environment, state, applied
        self.pending: Step | None = None
        self.holders = 1

    async def release(self) -> None:
        """One session less points to it; the last one ends it. Whatever goes wrong is logged."""
        self.holders -= 1
        if self.holders:
            return
        task = asyncio.ensure_future(self.environment.end(self.state))
        await asyncio.wait((task,), timeout=PATIENCE)
        if not task.done():
            task.cancel()
            log.warning("environment %s: releasing a state takes too long; it is left", self.environment.name)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("environment %s: releasing a state failed: %s", self.environment.name, _told(error))


class Session:
    """The state of one trajectory's tools. One call at a time; a call that is given up makes room for the next."""

    def __init__(self, steps: tuple[Step, ...] = ()) -> None:
        self._logs: dict[str, list[Step]] = {}
        self._live: dict[str, _Live] = {}
        self._turns: dict[str, object] = {}
        self._ending: set[asyncio.Future[None]] = set()
        for step in steps:
            self._log(step.environment).append(step)

    def steps(self, environment: str) -> list[Step]:
        """The calls so far that had an effect on that environment."""
        return list(self._log(environment))

    def _log(self, environment: str) -> list[Step]:
        return self._logs.setdefault(environment, [])

    def append(self, step: Step) -> None:
        """Log a call that was answered with an effect, whether it ran here or an equal one elsewhere."""
        self._log(step.environment).append(step)
        live = self._live.get(step.environment)
        if live is not None and live.pending == step:
            live.pending = None
            live.applied += 1

    async def run(
        self, environment: Environment, tool: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | str:
        """Run a call on the environment's state; `append` is to follow if it had an effect."""
        step = Step(environment.name, tool, copy.deepcopy(dict(arguments)), context.seed)
        turn = self._turns[environment.name] = object()
        live = await self._caught_up(environment, context)
        try:
            result = await _applied(live, step, context, len(self._log(environment.name)))
        except BaseException as error:
            await self._failed(live, turn, error)
            raise
        live.pending = step
        if self._turns.get(environment.name) is turn:
            self._live[environment.name] = live
        else:
            await live.release()
        return result

    async def _failed(self, live: _Live, turn: object, error: BaseException) -> None:
        """Drop the state, unless it cannot be built again; nobody who was cancelled waits for its end."""
        name = live.environment.name
        if live.environment.fork == "refuse" and self._turns.get(name) is turn:
            self._live[name] = live
        elif isinstance(error, Exception):
            await live.release()
        else:
            self._later(live.release())

    def _later(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _caught_up(self, environment: Environment, context: ToolContext) -> _Live:
        """The state after the whole log, taken out of the session: for its caller alone to change."""
        live = await self._own(environment)
        steps = self._log(environment.name)
        if live is not None and live.applied == len(steps):
            return live
        if environment.fork == "refuse" and steps:
            if live is not None:
                await live.release()
            raise RuntimeError(
                f'{environment.name} has no state after {len(steps)} calls; fork = "refuse" replays none'
            )
        missing = len(steps) - (0 if live is None else live.applied)
        with extra_time(missing + (live is None)) as seconds:
            try:
                async with asyncio.timeout(seconds):
                    return await self._rebuilt(environment, live, tuple(steps), context)
            except TimeoutError as error:
                raise RuntimeError(
                    f"the state of {environment.name} could not be built again: {missing} calls to replay ({error})"
                ) from error

    async def _own(self, environment: Environment) -> _Live | None:
        """The live state, if it is of use: a copy of its own if others point to it."""
        live = self._live.pop(environment.name, None)
        if live is None:
            return None
        stale = live.pending is not None and environment.fork != "refuse"
        if stale or live.environment is not environment:
            await live.release()
            return None
        if live.holders == 1:
            return live
        live.holders -= 1
        try:
            return _Live(environment, environment.copy(live.state), live.applied)
        except Exception as error:  # noqa: BLE001 - a user's class may fail in any way; a replay gives the same state
            log.warning("environment %s: copying failed, so it is replayed: %s", environment.name, told(error))
            return None

    async def _rebuilt(
        self, environment: Environment, live: _Live | None, steps: tuple[Step, ...], context: ToolContext
    ) -> _Live:
        if live is None:
            fresh = _reproducible(context, derive(context.task_id, environment.name, "start"), 0)
            live = _Live(environment, await environment.start(fresh), 0)
        try:
            for number in range(live.applied, len(steps)):
                await _applied(live, steps[number], context, number)
                live.applied += 1
        except BaseException:
            self._later(live.release())
            raise
        return live

    def fork(self) -> "Session":
        """The session of a branch that opens here."""
        child = Session()
        child._logs = {name: list(steps) for name, steps in self._logs.items()}
        for name, live in self._live.items():
            if live.environment.fork == "copy" and live.pending is None:
                live.holders += 1
                child._live[name] = live
        return child

    async def close(self) -> None:
        """Release all states; a call that still runs releases its own when it ends."""
        self._turns.clear()
        states, self._live = list(self._live.values()), {}
        await asyncio.gather(*(live.release() for live in states), *self._ending)


async def _applied(live: _Live, step: Step, context: ToolContext, number: int) -> ToolResult | str:
    """Run a step on a state; the log keeps arguments that no environment can change."""
    known = _reproducible(context, step.seed, number)
    return await live.environment.step(live.state, step.tool, copy.deepcopy(dict(step.arguments)), known)


def _reproducible(context: ToolContext, seed: int, number: int) -> ToolContext:
    return replace(context, path="", seed=seed, call_index=number, reasoning="", session=None)


def _told(error: BaseException) -> str:
    return told(error) if isinstance(error, Exception) else type(error).__name__
