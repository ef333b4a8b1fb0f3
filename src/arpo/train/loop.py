"""The training loop: rollouts, rewards, credit, one or more optimiser steps, publish; and everything on disk.

A step is a function of the run's seed, its number and the weights, so a step that is run again after a crash draws what
it drew before. Groups whose rewards do not differ carry no gradient; with `resample_flat` they are replaced by fresh
prompts (dynamic sampling), and what they cost is counted all the same.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from arpo.credit.base import assign_all
from arpo.credit.settings import CreditSettings, SoftCredit
from arpo.data.trees import write_trees
from arpo.errors import ConfigError, DataError
from arpo.learn.trains import DivergenceError, Trains
from arpo.reward.scorer import Scorer
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import check, rollout_many, unforkable
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.seeds import derive
from arpo.task import Task
from arpo.train.costs import engine_costs, snapshot
from arpo.train.progress import Reporter
from arpo.train.runfolder import RunFolder, storage
from arpo.train.settings import TrainSettings
from arpo.train.signals import StopRequest, graceful
from arpo.train.state import Position, restore, save
from arpo.train.stats import has_signal, mean, rollout_stats
from arpo.train.trackers import Trackers
from arpo.tree import RolloutTree

HeldOut = Callable[[int], Coroutine[Any, Any, Mapping[str, float]]]


@dataclass
class Setup:
    """The live objects of a run. `heldout(step)` gives the `heldout/...` metrics; None: none while training."""

    model: Any
    tokenizer: Any
    agent: Agent
    scorer: Scorer
    learner: Trains
    tasks: Sequence[Task]
    heldout: HeldOut | None = None


@dataclass(frozen=True)
class Plan:
    """The settings of a run."""

    train: TrainSettings
    rollout: RolloutSettings
    entropy: EntropySettings = field(default_factory=EntropySettings)
    credit: CreditSettings = field(default_factory=SoftCredit)
    seed: int = 0


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. `exit_code` is non-zero when a signal stopped it (it can be resumed)."""

    position: Position
    exit_code: int


def train(setup: Setup, plan: Plan, folder: RunFolder, reporter: Reporter) -> TrainResult:
    """Train until the first budget of `plan.train` is used up. Continues where `folder` stands."""
    if not setup.tasks:
        raise DataError("no training tasks: check data.* in the config")
    if not setup.agent.engine.capabilities.weight_update:
        raise ConfigError(
            "the engine takes no new weights, so it would go on sampling from the old policy; set engine.publish, or "
            'sample in this process with engine.type = "local"'
        )
    check(
        plan.rollout,
        setup.agent.engine.capabilities,
        entropy=plan.entropy,
        vocab_size=setup.agent.vocab_size,
        tools=setup.agent.toolbox.names,
        unforkable=unforkable(setup.agent.toolbox),
    )
    loop = _Loop(setup, plan, folder, reporter)
    with asyncio.Runner() as runner, graceful(reporter.say) as stop:
        return runner.run(loop.run_and_close(stop))


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, tasks: int) -> np.ndarray:
    """The order of the tasks in one epoch; a batch touches two epochs at the most."""
    return np.random.default_rng(derive(seed, "order", epoch)).permutation(tasks)


@dataclass(frozen=True)
class _Collected:
    """What a step sampled: all its trees, those that the update gets, the task cursor after them, `dynamic/...`."""

    trees: list[RolloutTree]
    used: list[RolloutTree]
    cursor: int
    metrics: dict[str, float]


class _Loop:
    def __init__(self, setup: Setup, plan: Plan, folder: RunFolder, reporter: Reporter) -> None:
        self.setup, self.plan, self.folder, self.reporter = setup, plan, folder, reporter
        self.trackers = Trackers(plan.train.trackers, folder.path, reporter.warn)
        self.position = restore(folder.checkpoints, setup.tokenizer, setup.learner, reporter.warn)
        folder.rewind(self.position.step)
        if self.position.step:
            reporter.say(f"resuming after step {self.position.step}")

    async def run_and_close(self, stop: StopRequest) -> TrainResult:
        async with self.setup.agent, self.setup.scorer:
            await self.setup.scorer.check()
            return await self.run(stop)

    async def run(self, stop: StopRequest) -> TrainResult:
        await self.setup.agent.engine.publish(self.setup.model, self.position.step)
        saved = self.position.step
        while not self._finished() and not stop:
            await self._step()
            if self.position.step % self.plan.train.checkpoint_every == 0:
                saved = self._save()
        if saved != self.position.step:
            self._save()
        self.trackers.close()
        return TrainResult(self.position, stop.exit_code)

    def _finished(self) -> bool:
        return self._done() >= 1

    def _done(self) -> float:
        """Share of the tightest budget that is used."""
        at, budget = self.position, self.plan.train
        shares = [at.step / budget.steps]
        if budget.max_generated_tokens is not None:
            shares.append(at.generated_tokens / budget.max_generated_tokens)
        if budget.max_seconds is not None:
            shares.append(at.seconds / budget.max_seconds)
        return max(shares)

    async def _step(self) -> None:
        """One step: everything it leaves on disk is written before the position moves on."""
        begin, number = time.monotonic(), self.position.step + 1
        asked = snapshot(self.setup.agent.engine.stats)
        self.setup.agent.toolbox.drain()  # of the evaluation before
        self.setup.scorer.drain()
        groups = await self._collect(number)
        trees = groups.trees
        generated = time.monotonic()
        costs = engine_costs(asked, self.setup.agent.engine.stats, trees, generated - begin)
        costs |= self.setup.agent.toolbox.drain() | self.setup.scorer.drain()
        try:
            row = self._update(groups.used)
        except DivergenceError as error:
            raise DivergenceError(f"step {number}, {error}") from error
        await self.setup.agent.engine.publish(self.setup.model, number)
        updated = time.monotonic()
        with storage(self.folder.rollouts):
            write_trees(self.folder.rollout_file(number), trees, step=number, decode=self.setup.agent.dialect.decode)
        at = self.position.after(
            cursor=groups.cursor,
            generated_tokens=sum(tree.generated_tokens for tree in trees),
            tool_calls=sum(tree.tool_calls for tree in trees),
            seconds=updated - begin,
        )
        timing = {"timing_s/gen": generated - begin, "timing_s/update": updated - generated}
        row = {"step": number} | costs | rollout_stats(trees) | groups.metrics | row | timing | at.metrics()
        row["throughput/tokens_s"] = sum(tree.generated_tokens for tree in trees) / (updated - begin)
        self.position = at
        every = self.plan.train.eval_every
        if self.setup.heldout is not None and every and (number % every == 0 or self._finished()):
            row |= await self.setup.heldout(number)
        self.folder.append(row)
        self.trackers.log(row, number)
        self.reporter.step(row, min(self._done(), 1.0))

    async def _collect(self, step: int) -> _Collected:
        """Sample and score this step's groups; with `resample_flat` round after round until enough of them differ."""
        settings, cursor = self.plan.train, self.position.cursor
        trees: list[RolloutTree] = []
        useful: list[RolloutTree] = []
        rounds = 0
        while len(useful) < settings.prompts and rounds < (settings.max_rounds if settings.resample_flat else 1):
            fresh = await self._round(step, cursor)
            cursor, rounds = cursor + settings.prompts, rounds + 1
            trees += fresh
            useful += [tree for tree in fresh if has_signal(tree)]
        if not settings.resample_flat:
            return _Collected(trees, trees, cursor, {})
        missing = max(settings.prompts - len(useful), 0)
        if missing:
            self.reporter.warn(
                f"step {step}: {missing} of {settings.prompts} groups are missing after {rounds} rounds, in all others "
                "every trajectory earned the same; raise train.max_rounds, or train on tasks that are neither hopeless "
                "nor solved"
            )
        metrics = {
            "dynamic/rounds": float(rounds),
            "dynamic/dropped_groups": float(len(trees) - len(useful)),
            "dynamic/missing_groups": float(missing),
        }
        return _Collected(trees, useful[: settings.prompts], cursor, metrics)

    async def _round(self, step: int, cursor: int) -> list[RolloutTree]:
        """Scored trees of the next `train.prompts` tasks from `cursor` on."""
        tasks = [self._task(cursor + i) for i in range(self.plan.train.prompts)]
        trees = await rollout_many(
            tasks,
            self.setup.agent,
            settings=self.plan.rollout,
            entropy=self.plan.entropy,
            seed_parts=(self.plan.seed, "step", step, cursor + len(tasks)),
        )
        scorer = self.setup.scorer
        return await asyncio.gather(*(scorer.scored(tree, task) for tree, task in zip(trees, tasks, strict=True)))

    def _task(self, cursor: int) -> Task:
        """Tasks in a fresh order every epoch."""
        epoch, place = divmod(cursor, len(self.setup.tasks))
        return self.setup.tasks[int(_order(self.plan.seed, epoch, len(self.setup.tasks))[place])]

    def _update(self, trees: Sequence[RolloutTree]) -> dict[str, float]:
        """One optimiser step per mini-batch of prompts; metrics averaged over them."""
        learner = self.setup.learner
        old_logp = learner.logprobs(trees) if learner.loss.old == "trainer" else None
        divergence = learner.divergence(trees, old_logp) if self.plan.credit.needs_reference else None
        credits = assign_all(trees, self.plan.credit, divergence)
        size = self.plan.train.mini_batch or self.plan.train.prompts
        starts = range(0, max(len(trees), 1), size)  # without any tree one empty update: the schedule goes on
        rows = [
            learner.update(trees[i : i + size], credits[i : i + size], old_logp and old_logp[i : i + size])
            for i in starts
        ]
        names = {name: name for row in rows for name in row}
        names |= {name: f"update/{name}" for name in ("num_tokens", "sharing", "computed_tokens", "passes")}
        return {shown: mean([row[name] for row in rows if name in row]) for name, shown in names.items()}

    def _save(self) -> int:
        setup, keep = self.setup, self.plan.train.keep_checkpoints
        save(self.folder.checkpoints, self.position, setup.tokenizer, setup.learner, keep)
        return self.position.step
