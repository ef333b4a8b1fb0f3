"""One question put to a baseline agent under a configuration: what an evaluation with `--agent` does with each of its
own, for somebody who wants to see how it goes about it.
"""

from dataclasses import replace

from arpo.config.schema import Config
from arpo.config.wire import Policy
from arpo.evaluate.agents.base import Solved
from arpo.evaluate.agents.registry import build
from arpo.evaluate.run import sampled
from arpo.evaluate.settings import PUBLISHED
from arpo.reward.scorer import Scorer
from arpo.task import Task


async def asked(config: Config, policy: Policy, task: Task, name: str) -> Solved:
    """The answers of the agent `name`, `evaluation.samples` of them; scored if the task has an answer.

    The question draws as question 0 of an evaluation would. Raises ConfigError if there is no such agent, or if it
    needs what the policy does not have.
    """
    settings = config.evaluation
    method = build(name)
    agent = method.fit(policy.agent)
    rollout = sampled(config.rollout, settings.samples, *settings.sampling(PUBLISHED))
    solved = await method.solve(task, agent, rollout, (settings.seed, "evaluate", 0))
    if not task.answers:
        return solved
    async with Scorer(config.reward, agent.dialect) as scorer:
        return replace(solved, tree=await scorer.scored(solved.tree, task))
