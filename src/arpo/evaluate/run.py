"""Measuring a policy on held-out tasks.

Trajectories are independent (no branching, no resampling) and drawn at the temperature that is asked for, so the
accuracy is that of the policy itself. A question is right if its answer is: bonuses and penalties of the training
reward do not count. The seed is the same for every policy that is compared, so differences can be paired by question.
Trajectories that the infrastructure lost are left out and counted, never scored as wrong.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from arpo.errors import ConfigError, DataError
from arpo.evaluate.result import EvalResult, summarise
from arpo.reward.scorer import Scorer
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout as grow
from arpo.rollout.scheduler import together
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import Task
from arpo.tree import RolloutTree

OnProgress = Callable[[int, int], None]
"""Called with (questions done, questions in all) after each question."""


def single(settings: RolloutSettings, temperature: float = 1.0, top_p: float = 1.0) -> RolloutSettings:
    """The rollout of an evaluation: the limits of `settings`, one trajectory per question, no branching."""
    changes = {"total": 1, "initial": 1, "branching": NoBranching(), "temperature": temperature, "top_p": top_p}
    return RolloutSettings(**(dict(settings) | changes))


async def evaluate(
    tasks: Sequence[Task],
    agent: Agent,
    *,
    rollout: RolloutSettings,
    scorer: Scorer,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> EvalResult:
    """Roll out every task under `rollout` (see `single`) and score it.

    Raises DataError without tasks, ConfigError if `rollout` branches, ArpoError if no trajectory at all could be
    scored.
    """
    if not tasks:
        raise DataError("no held-out tasks: check data.* in the config")
    if rollout.branching.type != "none":
        raise ConfigError(
            f'an evaluation takes branching "none", not "{rollout.branching.type}": branches are not '
            "independent samples of the policy"
        )
    begin, gate, done = time.monotonic(), asyncio.Semaphore(rollout.concurrency), itertools.count(1)

    async def one(place: int, task: Task) -> RolloutTree:
        async with gate:
            tree = await grow(
                task,
                agent,
                settings=rollout,
                entropy=EntropySettings(),
                seed_parts=(seed, "evaluate", place),
            )
        if on_progress is not None:
            on_progress(next(done), len(tasks))
        return await scorer.scored(tree, task)

    trees = await together([one(place, task) for place, task in enumerate(tasks)])
    return summarise(tasks, trees, time.monotonic() - begin, seed)
