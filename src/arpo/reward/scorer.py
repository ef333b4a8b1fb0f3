"""The rewards of a run: everything that its configuration asks for, behind one door.

Comparing answers may take long (a worker checks mathematics, a judge is asked over the network), so it happens off the
event loop and for many trajectories at once. What a trajectory holds is read before that, in the loop.
"""

import asyncio

from arpo.protocol.base import Dialect
from arpo.reward.answers import best_score
from arpo.reward.compose import Reading, read, weigh
from arpo.reward.settings import RewardSettings
from arpo.task import Task
from arpo.tree import Outcome, RolloutTree


class Scorer:
    """Scores trees under one configuration. One per run, closed at its end."""

    def __init__(self, settings: RewardSettings, dialect: Dialect) -> None:
        self.settings, self.dialect = settings, dialect

    async def __aenter__(self) -> "Scorer":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def outcomes(self, tree: RolloutTree, task: Task) -> tuple[Outcome, ...]:
        """One outcome per leaf, in the order of the leaves. A trajectory that cannot be scored has reward None."""
        readings = [read(tree, leaf, self.dialect) for leaf in tree.leaves]
        return tuple(await asyncio.gather(*(self._outcome(reading, task) for reading in readings)))

    async def scored(self, tree: RolloutTree, task: Task) -> RolloutTree:
        """The tree with its outcomes."""
        return tree.with_outcomes(await self.outcomes(tree, task))

    async def _outcome(self, reading: Reading | None, task: Task) -> Outcome:
        if reading is None:
            return Outcome(None)
        accuracy = 0.0
        if not reading.faults:
            mode = self.settings.accuracy
            accuracy = await asyncio.to_thread(best_score, reading.answer, task.answers, mode=mode, kind=task.kind)
        return weigh(reading, accuracy, self.settings)

    def drain(self) -> dict[str, float]:
        """Counters since the last call, as metrics `reward/...`; they start again from 0."""
        return {}

    async def close(self) -> None:
        """Release worker processes and connections."""
