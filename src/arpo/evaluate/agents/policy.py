"""The policy as it is trained: the rollout's own loop, without branches.

This is what all others are compared with. Language, tools and limits are those of the configuration, and a trajectory
is what the trainer would have sampled.
"""

from arpo.evaluate.agents.base import SeedParts, Solved, rolled
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task


class Policy:
    """The rollout's own loop."""

    name = "policy"
    about = "the policy as it is trained: its own dialect, prompt and tools"

    def fit(self, agent: Agent) -> Agent:
        """The agent itself."""
        return agent

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """See Method."""
        return Solved(await rolled(task, agent, settings, seed_parts))
