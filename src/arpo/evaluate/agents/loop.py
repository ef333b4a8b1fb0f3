"""Trajectories with a beginning or an end of the method's own.

Some methods are the rollout's loop in another language. Others are not: one reads before the model says its first
word, one follows what it says, one asks once more when it has said its last. They get the same pieces that a rollout
is made of (a walk, turns, shared calls, seeds named by place), without branches.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from arpo.engine.base import SampleParams
from arpo.errors import DataError, EngineDownError, EngineError
from arpo.rollout.agent import Agent
from arpo.rollout.assemble import assemble
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.sharing import SharedCalls, mark_shared
from arpo.rollout.turns import Turns
from arpo.rollout.walk import Walk
from arpo.seeds import derive
from arpo.task import Task
from arpo.tree import Finish, RolloutTree, Segment, Source, ToolEvent


class Loop:
    """The trajectories of one task. Use once: `await Loop(...).run(follow)`."""

    def __init__(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: tuple[str | int, ...]) -> None:
        """Raises DataError if the prompt leaves no room in the engine's context."""
        self.task, self.agent, self.settings = task, agent, settings
        self.seed_parts = (*seed_parts, task.id)
        self.prompt = np.asarray(agent.dialect.prompt(task), np.int32)
        self.room = min(settings.max_tokens, agent.engine.capabilities.max_context - len(self.prompt))
        if self.room < 1:
            raise DataError(
                f"task {task.id}: its prompt of {len(self.prompt)} tokens fills the engine's context of "
                f"{agent.engine.capabilities.max_context}; leave the task out, or use a model with a longer context"
            )
        self.calls = SharedCalls(agent.toolbox, settings.share_calls, self.seed_parts)
        self.turns = Turns(task, agent.dialect, self.calls, agent.toolbox, settings)

    async def run(self, follow: Callable[[Walk], Awaitable[None]]) -> RolloutTree:
        """`settings.total` trajectories, each the work of `follow`, as a valid tree."""
        walks = [Walk(f"r{number}", self.prompt.tolist(), self.room, False) for number in range(self.settings.total)]
        try:
            async with asyncio.TaskGroup() as group:
                for walk in walks:
                    group.create_task(self._guarded(follow, walk))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for walk in walks:
                await walk.session.close()
        for walk in walks if self.turns.dropped else ():
            self.fail(walk)
        mark_shared(walks)
        tree = assemble(self.task, self.prompt, walks, (), wasted_tokens=0, top_ups=0)
        return tree.validate(self.settings.total)

    async def _guarded(self, follow: Callable[[Walk], Awaitable[None]], walk: Walk) -> None:
        try:
            await follow(walk)
        except EngineDownError:
            raise
        except EngineError:
            self.fail(walk)

    def fail(self, walk: Walk, event: ToolEvent | None = None) -> None:
        """The infrastructure broke here: the trajectory ends and has no reward. `event`: the call that broke."""
        last = walk.pieces[-1] if walk.pieces else None
        if last is not None and last.finish is Finish.ERROR:
            return
        nothing = Segment(np.empty(0, np.int32), Source.POLICY, finish=Finish.ERROR, event=event)
        if last is not None and last.event is not None and last.is_policy:
            walk.pieces[-1] = replace(last, finish=Finish.ERROR)
        else:
            walk.append(replace(nothing, version=self.agent.engine.version))

    async def converse(self, walk: Walk, heard: Callable[[Walk], None] | None = None) -> None:
        """Sample and answer calls until the trajectory is over. `heard`: told of the walk after each policy segment."""
        while not self.turns.dropped:
            finish = await self.sample(walk)
            if heard is not None:
                heard(walk)
            if not await self.turns.respond(walk, finish):
                return

    async def sample(self, walk: Walk) -> Finish:
        """One policy segment, as long as there is room."""
        dialect, settings = self.agent.dialect, self.settings
        params = SampleParams(walk.room, settings.temperature, settings.top_p, dialect.stop, dialect.end_tokens)
        seed = derive(*self.seed_parts, walk.path, walk.drawn, "sample")
        walk.drawn += 1
        piece = await self.agent.engine.sample(walk.tokens, params, seed)
        walk.append(piece)
        return piece.finish
