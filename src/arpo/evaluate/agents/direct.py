"""Direct answer: the question, the model's reasoning, an answer. No tools.

The reference line of every comparison with tools. Reasoning before the answer is asked for (zero-shot chain of thought:
Kojima et al. 2022, arXiv 2205.11916).
"""

from dataclasses import replace

from arpo.evaluate.agents.base import SeedParts, Solved, rolled
from arpo.evaluate.agents.text import BOXED, TextDialect
from arpo.evaluate.agents.voice import plain_voice_of
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task

INSTRUCTIONS = f"Answer the user's question from what you know. Think step by step. {BOXED}"


class Direct:
    """Answers without tools."""

    name = "direct"
    about = "reasoning and an answer, no tools"

    def fit(self, agent: Agent) -> Agent:
        """The same model, asked plainly, with no tools."""
        dialect = TextDialect(plain_voice_of(agent.dialect, self.name), INSTRUCTIONS)
        return replace(agent, dialect=dialect, toolbox=agent.toolbox.only(()))

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """See Method."""
        return Solved(await rolled(task, agent, settings, seed_parts))
