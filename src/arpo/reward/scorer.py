"""The rewards of a run: everything that its configuration asks for, behind one door.

Comparing answers may take long (a worker checks mathematics, a judge is asked over the network), so it happens off the
event loop and for many trajectories at once. What a trajectory holds is read before that, in the loop.
"""

import asyncio
from typing import Any

from arpo.protocol.base import Dialect
from arpo.reward import mathematics
from arpo.reward.compose import Reading, read, weigh
from arpo.reward.custom import CustomReward
from arpo.reward.metrics import build
from arpo.reward.official import response, weigh_official
from arpo.reward.settings import RewardSettings
from arpo.reward.verdict import Metric
from arpo.task import Task
from arpo.tree import Outcome, RolloutTree

Deciders = tuple[Metric | None, CustomReward | None]


def deciders(settings: RewardSettings) -> Deciders:
    """What the settings name: who compares answers, and the custom reward. Nothing is asked yet.

    Raises ConfigError for what cannot be imported, read or used, so it is worth calling before a model is loaded.
    """
    metric = None if settings.accuracy == "none" else build(settings.accuracy, settings.judge)
    return metric, None if settings.custom is None else CustomReward(settings.custom, settings.custom_weight)


class Scorer:
    """Scores trees under one configuration. One per run, closed at its end."""

    def __init__(self, settings: RewardSettings, dialect: Dialect, by: Deciders | None = None) -> None:
        """`by`: the settings' `deciders`, if they are there already; they are closed with the scorer.

        Raises ConfigError for a judge or a custom reward that cannot be used.
        """
        self.settings, self.dialect = settings, dialect
        self._metric, self._custom = by or deciders(settings)
        mathematics.configure(settings.mathematics)
        self._counted = mathematics.counters()

    async def __aenter__(self) -> "Scorer":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def check(self) -> None:
        """At the start of a run: whether the judge, if there is one, can be asked. EngineError if not.

        Later an outage costs the trajectories that it meets their reward, and nothing else.
        """
        if self._metric is not None:
            await self._metric.check()

    async def outcomes(self, tree: RolloutTree, task: Task) -> tuple[Outcome, ...]:
        """One outcome per leaf, in the order of the leaves. A trajectory that cannot be scored has reward None.

        Raises RewardError if a custom reward fails.
        """
        return tuple(await asyncio.gather(*(self._outcome(tree, leaf, task) for leaf in tree.leaves)))

    async def scored(self, tree: RolloutTree, task: Task) -> RolloutTree:
        """The tree with its outcomes."""
        return tree.with_outcomes(await self.outcomes(tree, task))

    async def _outcome(self, tree: RolloutTree, leaf: int, task: Task) -> Outcome:
        reading = read(tree, leaf, self.dialect)
        if reading is None:
            return Outcome(None)
        outcome = await self._weighed(reading, tree, leaf, task)
        if outcome.reward is None or self._custom is None:
            return outcome
        return await self._custom.added(outcome, reading, task)

    async def _weighed(self, reading: Reading, tree: RolloutTree, leaf: int, task: Task) -> Outcome:
        if self.settings.composition == "official":
            return weigh_official(response(tree, leaf, self.dialect), reading, task, self.settings)
        accuracy = await self._accuracy(reading, task)
        return Outcome(None, reading.answer) if accuracy is None else weigh(reading, accuracy, self.settings)

    async def _accuracy(self, reading: Reading, task: Task) -> float | None:
        """0 for a malformed trajectory, which is never judged; None if nobody could say."""
        if reading.faults or self._metric is None:
            return 0.0
        return (await self._metric(task, reading.answer)).score

    def card(self) -> dict[str, Any]:
        """For the card of a run: who compares answers, down to the hash of a judge's prompt."""
        metric = {"metric": "none"} if self._metric is None else self._metric.card()
        return metric | ({} if self._custom is None else {"custom": self._custom.path})

    def drain(self) -> dict[str, float]:
        """Counters since the last call, as metrics `reward/...`; they start again from 0.

        `verify_...`: formulas compared in worker processes, by this process as a whole.
        """
        counted, now = self._counted, mathematics.counters()
        self._counted = now
        names = {"calls": "calls", "timeouts": "timeout", "crashes": "crash", "memory": "memory"}
        verified = {
            f"reward/verify_{name}": float(getattr(now, key) - getattr(counted, key)) for key, name in names.items()
        }
        return verified | ({} if self._metric is None else dict(self._metric.drain()))

    async def close(self) -> None:
        """Release connections and files."""
        if self._metric is not None:
            await self._metric.close()
