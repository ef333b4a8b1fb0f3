"""What every way of answering keeps to, so that one evaluation compares them all.

A method gets the same engine, tools and limits as the policy's own loop and returns the same kind of tree, so that
scores, tool counts, tokens and the viewer mean the same for all of them.

    agent = method.fit(agent)                    # once, before anything is sampled
    scorer = Scorer(settings, agent.dialect)     # answers are read in the method's own format
    solved = await method.solve(task, agent, rollout, seed_parts)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import Task
from arpo.tree import RolloutTree

SeedParts = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Solved:
    """A task's trajectories, `settings.total` independent leaves.

    `aside_tokens`, `aside_calls`: tokens sampled and engine calls made outside the trajectories (a document read, a
    draft revised): what they cost belongs to the method, what they say is context. `aside_read`: tokens that these
    calls were given. `aside_tools`: calls of tools that no segment of the tree shows (pages opened to read for a
    search), by tool.
    """

    tree: RolloutTree
    aside_tokens: int = 0
    aside_calls: int = 0
    aside_read: int = 0
    aside_tools: Mapping[str, int] = field(default_factory=dict)


class Method(Protocol):
    """A way to answer; one file each."""

    name: str
    about: str
    """One sentence for lists."""

    def fit(self, agent: Agent) -> Agent:
        """The agent as this method uses it: its language and the tools that it may call.

        Engine, tools and counters are those of `agent`, which remains the one to close. Raises ConfigError if the
        agent lacks something that the method needs (a tool, a chat template).
        """
        ...

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """Answer `task` `settings.total` times with an agent that `fit` gave. Same seeds, same answers.

        The limits of `settings` (response tokens, tool calls, result tokens) hold for each trajectory; its branching
        does not, since branches are no independent samples. An engine or tool that broke ends the trajectory with
        `Finish.ERROR`, as in a rollout; it is never scored as wrong.
        """
        ...


def independent(settings: RolloutSettings) -> RolloutSettings:
    """The same limits and as many trajectories, all of them started from the prompt."""
    return RolloutSettings(**(dict(settings) | {"initial": settings.total, "branching": NoBranching()}))


async def rolled(task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> RolloutTree:
    """The rollout's own loop without branches."""
    settings = independent(settings)
    return await rollout(task, agent, settings=settings, entropy=EntropySettings(), seed_parts=seed_parts)
