"""The training loop: rollouts, rewards, credit, one or more optimiser steps, publish; and everything on disk.

A step is a function of the run's seed, its number and the weights, so a step that is run again after a crash draws what
it drew before. Groups whose rewards do not differ carry no gradient; with `resample_flat` they are replaced by fresh
prompts (dynamic sampling), and what they cost is counted all the same.

Several processes go through the loop side by side (`arpo.train.team`): each samples its share of the groups, all make
the update together, the first one writes.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arpo.credit.base import assign_all
from arpo.credit.settings import CreditSettings, SoftCredit
from arpo.data.trees import write_trees
from arpo.errors import ConfigError, DataError
from arpo.learn.trains import DivergenceError, Trains
from arpo.reward.scorer import Scorer
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import check, unforkable
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.task import Task
from arpo.train.collect import Collected, collect
from arpo.train.costs import Spent, between, costs, snapshot
from arpo.train.progress import Reporter
from arpo.train.publishing import Twin, publish
from arpo.train.runfolder import RunFolder, storage
from arpo.train.settings import TrainSettings
from arpo.train.signals import StopRequest, graceful
from arpo.train.state import Position, restore, save
from arpo.train.stats import mean, rollout_stats
from arpo.train.team import ALONE, Team
from arpo.train.trackers import Trackers
from arpo.tree import RolloutTree

_PASSED_ON_S = 3.0
"""In which a launcher sends a signal on that the terminal has sent already."""

HeldOut = Callable[[int], Coroutine[Any, Any, Mapping[str, float]]]


@dataclass
class Setup:
    """The live objects of a run. `heldout(step)` gives the `heldout/...` metrics; None: none while training.

    `team`: the processes that train together. `twin`: the copy of a policy in shards that the engine is given.
    """

    model: Any
    tokenizer: Any
    agent: Agent
    scorer: Scorer
    learner: Trains
    tasks: Sequence[Task]
    heldout: HeldOut | None = None
    team: Team = ALONE
    twin: Twin | None = None


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
    """Train until the first budget of `plan.train` is used up. Continues where `folder` stands.

    Several processes call it together, inside `setup.team.together()`.
    """
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
    with asyncio.Runner() as runner, graceful(reporter.say, _PASSED_ON_S if setup.team.size > 1 else 0.0) as stop:
        return runner.run(loop.run_and_close(stop))


class _Loop:
    def __init__(self, setup: Setup, plan: Plan, folder: RunFolder, reporter: Reporter) -> None:
        self.setup, self.plan, self.folder, self.reporter = setup, plan, folder, reporter
        trackers = plan.train.trackers if setup.team.first else ()
        self.trackers = Trackers(trackers, folder.path, reporter.warn)
        self.position = restore(folder.checkpoints, setup.tokenizer, setup.learner, reporter.warn, setup.team)
        if setup.team.first:
            folder.rewind(self.position.step)
        if self.position.step:
            reporter.say(f"resuming after step {self.position.step}")

    async def run_and_close(self, stop: StopRequest) -> TrainResult:
        async with self.setup.agent, self.setup.scorer:
            with self.setup.team.cancelling():
                await self.setup.scorer.check()
                return await self.run(stop)

    async def run(self, stop: StopRequest) -> TrainResult:
        await publish(self.setup, self.position.step)
        saved = self.position.step
        while not self._finished() and not self._stopped(stop):
            await self._step()
            if self.position.step % self.plan.train.checkpoint_every == 0:
                saved = self._save()
        if saved != self.position.step:
            self._save()
        self.trackers.close()
        return TrainResult(self.position, stop.exit_code)

    def _stopped(self, stop: StopRequest) -> bool:
        """Whether any process was asked to stop; then all were."""
        stop.signal = max(self.setup.team.share(stop.signal or 0)) or None
        return bool(stop)

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
        setup, number = self.setup, self.position.step + 1
        begin, asked = time.monotonic(), snapshot(setup.agent.engine.stats)
        setup.agent.toolbox.drain()  # of the evaluation before
        setup.scorer.drain()
        groups = await collect(setup, self.plan, number, self.position.cursor)
        self._warn_of_missing(number, groups)
        generated = time.monotonic()
        engine, tools = between(asked, setup.agent.engine.stats), setup.agent.toolbox.take_stats()
        scorer = setup.scorer.drain()
        try:
            row = self._update(groups.used)
        except DivergenceError as error:
            raise DivergenceError(f"step {number}, {error}") from error
        await publish(setup, number)
        spent = setup.team.share(Spent(engine, tools, scorer, generated - begin, time.monotonic() - generated))
        await self._conclude(number, groups, costs(spent, groups.trees), row)

    async def _conclude(
        self, number: int, groups: Collected, costs: Mapping[str, float], update: Mapping[str, float]
    ) -> None:
        """Move on: the same position in all processes, and the step's row, with what is measured every few steps."""
        trees = groups.trees
        if self.setup.team.first:
            with storage(self.folder.rollouts):
                file = self.folder.rollout_file(number)
                write_trees(file, trees, step=number, decode=self.setup.agent.dialect.decode)
        sampled, seconds = (
            sum(tree.generated_tokens for tree in trees),
            costs["timing_s/gen"] + costs["timing_s/update"],
        )
        self.position = self.position.after(
            cursor=groups.cursor,
            generated_tokens=sampled,
            tool_calls=sum(tree.tool_calls for tree in trees),
            seconds=seconds,
        )
        row = {"step": number, **costs, **rollout_stats(trees), **groups.metrics, **update, **self.position.metrics()}
        row["throughput/tokens_s"] = sampled / seconds
        every = self.plan.train.eval_every
        if self.setup.heldout is not None and every and (number % every == 0 or self._finished()):
            row |= await self.setup.heldout(number)
        if self.setup.team.first:
            self.folder.append(row)
            self.trackers.log(row, number)
        self.reporter.step(row, min(self._done(), 1.0))

    def _warn_of_missing(self, step: int, groups: Collected) -> None:
        if groups.missing:
            self.reporter.warn(
                f"step {step}: {groups.missing} of {self.plan.train.prompts} groups are missing after {groups.rounds} "
                "rounds, in all others every trajectory earned the same; raise train.max_rounds, or train on tasks "
                "that are neither hopeless nor solved"
            )

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
        save(self.folder.checkpoints, self.position, setup.tokenizer, setup.learner, keep, setup.team)
        return self.position.step
