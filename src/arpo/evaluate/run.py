"""Measuring a policy: every task answered by a method, scored, and nothing lost on the way.

Trajectories are independent (no branching, no resampling) and drawn at the temperature that is asked for, so the
figures are those of the policy itself. The seed is the same for every policy that is compared, so differences can be
paired by question. Trajectories that the infrastructure lost are left out and counted, never scored as wrong.

`answer` is the one loop behind held-out tasks (`evaluate`) and published sets (`arpo.evaluate.benchmark`).
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from arpo.errors import ConfigError, DataError
from arpo.evaluate.agents.base import Method, SeedParts, Solved
from arpo.evaluate.result import EvalResult, summarise
from arpo.reward.scorer import Scorer
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import together
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.task import Task
from arpo.train.team import ALONE, Team
from arpo.tree import RolloutTree

OnProgress = Callable[[int, int], None]
"""Called with (questions done, questions in all) after each question."""
Keep = Callable[[int, Solved, float], Awaitable[None]]
"""Takes the place of a task, its trajectories, and the seconds that they took."""


def sampled(
    settings: RolloutSettings, samples: int = 1, temperature: float = 1.0, top_p: float = 1.0
) -> RolloutSettings:
    """The rollout of an evaluation: the limits of `settings`, `samples` trajectories per question, no branching.

    Raises ConfigError for several samples at temperature 0, which would all be the same.
    """
    if temperature == 0 and samples > 1:
        raise ConfigError(
            f"temperature = 0 makes all evaluation.samples = {samples} answers to a question the same: set it to 1, "
            "or raise evaluation.temperature"
        )
    changes = {"total": samples, "initial": samples, "branching": NoBranching()}
    return RolloutSettings(**(dict(settings) | changes | {"temperature": temperature, "top_p": top_p}))


async def answer(
    tasks: Sequence[Task],
    method: Method,
    agent: Agent,
    *,
    rollout: RolloutSettings,
    seeds: Callable[[int, Task], SeedParts],
    keep: Keep,
    gate: asyncio.Semaphore,
) -> None:
    """Let `method` answer every task, as many at once as `gate` lets in; `keep` gets each as it ends, outside the gate.

    The first failure cancels the rest and is raised itself.
    """

    async def one(place: int, task: Task) -> None:
        async with gate:
            begin = time.monotonic()
            solved = await method.solve(task, agent, rollout, seeds(place, task))
            seconds = time.monotonic() - begin
        await keep(place, solved, seconds)

    await together(one(place, task) for place, task in enumerate(tasks))


async def evaluate(
    tasks: Sequence[Task],
    agent: Agent,
    *,
    rollout: RolloutSettings,
    scorer: Scorer,
    method: Method,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    team: Team = ALONE,
) -> EvalResult:
    """Answer every task under `rollout` (see `sampled`) and score it. `agent`: as `method.fit` gave it.

    Of a `team` of processes each answers its share, and all get the result of the whole.

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
    begin, done = time.monotonic(), itertools.count(1)
    trees: dict[int, RolloutTree] = {}
    places = team.deal(range(len(tasks)))
    own = [tasks[place] for place in places]

    async def keep(index: int, solved: Solved, seconds: float) -> None:
        if on_progress is not None:
            on_progress(next(done), len(own))
        trees[index] = await scorer.scored(solved.tree, own[index])

    await answer(
        own,
        method,
        agent,
        rollout=rollout,
        seeds=lambda index, task: (seed, "evaluate", places[index]),
        keep=keep,
        gate=asyncio.Semaphore(rollout.concurrency),
    )
    whole = await team.gather([trees[index] for index in range(len(own))])
    return summarise(tasks, whole, time.monotonic() - begin, seed)
