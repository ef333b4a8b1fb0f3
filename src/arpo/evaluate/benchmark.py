"""One published question set, measured: what is missing is answered, what has no verdict is judged, all of it is kept.

A trajectory is sampled once. It is asked for again only if the infrastructure lost it; if a judge was out of reach, or
another metric is wanted than last time, the answer that was kept is judged and nothing is sampled.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from arpo.evaluate.agents.base import Method, SeedParts, Solved
from arpo.evaluate.ledger import Ledger
from arpo.evaluate.run import OnProgress, answer
from arpo.evaluate.samples import Sample, judged, samples_of, scored_tree
from arpo.reward.verdict import Metric
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import together
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task

_AT_ONCE = 64
"""Questions whose kept answers are judged at once; a judge limits its own requests besides."""


@dataclass(frozen=True)
class Runner:
    """How questions are answered, for all sets of a command. To be made in the event loop that uses it.

    `agent`: as `method.fit` gave it. `attempt`: how often the command was started before. Sets may be measured side by
    side: what they ask for at once is `rollout.concurrency` questions in all, those of the first set first, so that
    nobody waits for a set's last trajectory.
    """

    method: Method
    agent: Agent
    rollout: RolloutSettings
    seed: int
    attempt: int
    begin: float = field(default_factory=time.monotonic)

    @cached_property
    def _gate(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.rollout.concurrency)

    async def measure(
        self, tasks: Sequence[Task], metrics: Sequence[Metric], ledger: Ledger, on_progress: OnProgress | None = None
    ) -> list[list[Sample]]:
        """The samples of every task, with a verdict of every metric (the headline first); those that the ledger holds
        are taken from it.
        """
        samples = self.rollout.total
        todo: list[Task] = []
        stale: list[tuple[Task, list[Sample]]] = []
        for task in tasks:
            rows = ledger.rows(task, samples)
            if not rows or any(row.lost for row in rows):
                todo.append(task)
            elif any(not row.judged_by(metrics) for row in rows):
                stale.append((task, rows))
        done = itertools.count(len(tasks) - len(todo) - len(stale) + 1)

        def tell() -> None:
            if on_progress is not None:
                on_progress(next(done), len(tasks))

        await self._judge_again(stale, metrics, ledger, tell)
        await self._answer(todo, metrics, ledger, tell)
        ledger.merge(tasks)
        return [ledger.rows(task, samples) for task in tasks]

    async def _answer(
        self, tasks: Sequence[Task], metrics: Sequence[Metric], ledger: Ledger, tell: Callable[[], None]
    ) -> None:
        async def keep(place: int, solved: Solved, seconds: float) -> None:
            task, at = tasks[place], time.monotonic() - self.begin
            rows = samples_of(task, solved, self.agent.dialect, seconds=seconds, attempt=self.attempt, at=at)
            rows = await judged(task, rows, metrics)
            ledger.keep(rows, scored_tree(solved.tree, rows, metrics[0].name))
            tell()

        await answer(
            tasks, self.method, self.agent, rollout=self.rollout, seeds=self._seeds, keep=keep, gate=self._gate
        )

    def _seeds(self, place: int, task: Task) -> SeedParts:
        """The task's id follows in the rollout; a place in the list would change with --limit."""
        return (self.seed, "benchmark")

    async def _judge_again(
        self,
        questions: Sequence[tuple[Task, list[Sample]]],
        metrics: Sequence[Metric],
        ledger: Ledger,
        tell: Callable[[], None],
    ) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(task: Task, rows: list[Sample]) -> None:
            async with gate:
                rows = await judged(task, rows, metrics)
                ledger.keep(rows, scored_tree(ledger.tree(task), rows, metrics[0].name))
            tell()

        await together(one(task, rows) for task, rows in questions)
