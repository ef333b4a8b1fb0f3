"""What a step samples: its groups, rolled out and scored, by as many processes as there are.

The tasks of a step and the seed of every group depend on the run's seed, the step and the task cursor, never on who
rolls a group out. Groups are dealt to the processes in turn and put back in their order, so that all have the trees
that one process alone would have.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from arpo.rollout.scheduler import rollout_many
from arpo.seeds import derive
from arpo.task import Task
from arpo.train.stats import has_signal
from arpo.tree import RolloutTree

if TYPE_CHECKING:
    from arpo.train.loop import Plan, Setup


@dataclass(frozen=True)
class Collected:
    """What a step sampled: all its trees, those that the update gets, the task cursor after them, `dynamic/...`.

    `missing`: groups that dynamic sampling did not find, after `rounds` rounds.
    """

    trees: list[RolloutTree]
    used: list[RolloutTree]
    cursor: int
    metrics: dict[str, float]
    missing: int = 0
    rounds: int = 1


async def collect(setup: "Setup", plan: "Plan", step: int, cursor: int) -> Collected:
    """Sample and score a step's groups; with `resample_flat` round after round until enough of them differ."""
    settings = plan.train
    most = settings.prompts * (settings.max_rounds if settings.resample_flat else 1)
    trees: list[RolloutTree] = []
    useful: list[RolloutTree] = []
    rounds = 0
    while count := _to_draw(settings.prompts, len(useful), len(trees), most):
        fresh = await _round(setup, plan, step, cursor, count)
        cursor, rounds = cursor + count, rounds + 1
        trees += fresh
        useful += [tree for tree in fresh if has_signal(tree)]
    if not settings.resample_flat:
        return Collected(trees, trees, cursor, {})
    missing = max(settings.prompts - len(useful), 0)
    metrics = {
        "dynamic/rounds": float(rounds),
        "dynamic/dropped_groups": float(len(trees) - len(useful)),
        "dynamic/surplus_groups": float(max(len(useful) - settings.prompts, 0)),
        "dynamic/missing_groups": float(missing),
    }
    return Collected(trees, useful[: settings.prompts], cursor, metrics, missing, rounds)


def _to_draw(wanted: int, useful: int, drawn: int, most: int) -> int:
    """Groups of the next round: as many as fill the batch if they differ as often as those of this step did so far.

    A whole round for a few missing groups would throw most of what it sampled away.
    """
    missing = max(wanted - useful, 0)
    likely = math.ceil(missing * drawn / useful) if useful else missing
    return min(likely, wanted, most - drawn)


async def _round(setup: "Setup", plan: "Plan", step: int, cursor: int, count: int) -> list[RolloutTree]:
    """Scored trees of the next `count` tasks from `cursor` on."""
    tasks = [_task(setup.tasks, plan.seed, cursor + i) for i in range(count)]
    own = await rollout_many(
        tasks,
        setup.agent,
        settings=plan.rollout,
        entropy=plan.entropy,
        seed_parts=(plan.seed, "step", step, cursor + len(tasks)),
        deal=setup.team.deal,
    )
    known = zip(own, setup.team.deal(tasks), strict=True)
    return await setup.team.gather(await asyncio.gather(*(setup.scorer.scored(tree, task) for tree, task in known)))


def _task(tasks: Sequence[Task], seed: int, cursor: int) -> Task:
    """Tasks in a fresh order every epoch."""
    epoch, place = divmod(cursor, len(tasks))
    return tasks[int(_order(seed, epoch, len(tasks))[place])]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, tasks: int) -> np.ndarray:
    """The order of the tasks in one epoch; a batch touches two epochs at the most."""
    return np.random.default_rng(derive(seed, "order", epoch)).permutation(tasks)
