"""What every way of answering keeps to, so that one evaluation compares them all.

A method gets the same engine, tools and limits as the policy's own loop and returns the same kind of tree, so that
scores, tool counts, tokens and the viewer mean the same for all of them.
"""

from dataclasses import dataclass
from typing import Protocol

from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task
from arpo.tree import RolloutTree

SeedParts = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Solved:
    """A task's trajectories, `settings.total` independent leaves.

    `aside_tokens`, `aside_calls`: tokens sampled and engine calls made outside the trajectories (a document read, a
    draft revised): what they cost belongs to the method, what they say is context.
    """

    tree: RolloutTree
    aside_tokens: int = 0
    aside_calls: int = 0


class Method(Protocol):
    """A way to answer; one file each."""

    name: str

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """Answer `task` `settings.total` times. Same seeds, same answers. The limits of `settings` (response tokens,
        tool calls, result tokens) hold for each trajectory. An engine or tool that broke ends the trajectory with
        `Finish.ERROR`, as in a rollout; it is never scored as wrong.
        """
        ...
