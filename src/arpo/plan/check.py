"""The plan against a run on this machine: counts as they are, times as ratios.

One process, one thread, the packaged policy on factbook questions. First the machine's pace is taken: a step of the
local engine with few and with many sequences, a forward and backward pass over random tokens. Then one step is rolled
out whose trees say how long trajectories are, how many calls they make and how often the rule fires: that is what a
user would have to guess. From these, and from nothing else of the steps that follow, the plan predicts those steps.

Times are seconds of processor time of this process. On a machine that others use they are nearly those of an idle one,
while seconds on the clock would be anything.
"""

import asyncio
import importlib.resources
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from arpo.config.load import load
from arpo.config.schema import Config
from arpo.config.wire import build_setup
from arpo.credit.base import assign_all
from arpo.engine.base import Engine, SampleParams
from arpo.engine.stats import EngineStats
from arpo.plan.calibrate import gradient_rate
from arpo.plan.measured import mix_of, share_of, trajectory_of, work_of
from arpo.plan.phases import Replica, decoding, gradient_operations
from arpo.plan.phases import engine as engine_phase
from arpo.plan.shapes import Shape, shape_of
from arpo.plan.simulation.run import Scene, simulate
from arpo.plan.work import Trajectory, Work, with_share, work
from arpo.rollout.scheduler import rollout_many
from arpo.task import Task
from arpo.train.loop import Setup
from arpo.tree import Outcome, RolloutTree

Say = Callable[[str], None]
_FEW, _MANY, _NEW, _TRIES = 4, 48, 24, 5
"""Sequences and tokens of the steps that are timed, and how often."""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of a step: what was predicted, and what the steps gave, in order."""

    name: str
    predicted: float
    measured: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Predicted / measured, the median over the steps."""
        return median(self.predicted / value for value in self.measured if value)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest of these ratios."""
        ratios = [self.predicted / value for value in self.measured if value]
        return min(ratios), max(ratios)


@dataclass(frozen=True, slots=True)
class _Step:
    work: Work
    computed: float
    operations: float
    rollout: float
    update: float


def check(model: str, *, prompts: int, group: tuple[int, int], max_tokens: int, steps: int, say: Say) -> list[Row]:
    """Predict `steps` steps of `prompts` groups of (roots, trajectories) and measure them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        config = _config(model, prompts, group, max_tokens)
        checking = _Check(config, build_setup(config, say), say)
        return checking.rows(*asyncio.run(checking.run(steps)))
    finally:
        torch.set_num_threads(threads)


def _config(model: str, prompts: int, group: tuple[int, int], max_tokens: int) -> Config:
    roots, total = group
    with importlib.resources.as_file(importlib.resources.files("arpo") / "assets" / "demo.toml") as path:
        changes = {
            "model.path": model,
            "train.prompts": prompts,
            "rollout.initial": roots,
            "rollout.total": total,
            "rollout.max_tokens": max_tokens,
            "optim.lr": 1e-6,
            "tools.1.backend": "monty",
            "tools.1.fallback": "none",
        }
        return load([path], [f"{name}={value}" for name, value in changes.items()]).config


class _Check:
    def __init__(self, config: Config, setup: Setup, say: Say) -> None:
        self.config, self.setup, self.say = config, setup, say
        self.shape = shape_of(config.model.path)

    async def run(self, steps: int) -> tuple[list[RolloutTree], Replica, float, list[_Step]]:
        """The trees of the first step, the paces of engine and gradient, and the steps."""
        async with self.setup.agent, self.setup.scorer:
            self.say("the pace of this machine: the engine's steps")
            model = await step_pace(self.setup.agent.engine, self.shape)
            self.say("the pace of this machine: a gradient")
            rate = gradient_rate(self.setup.model, self.shape, clock=time.process_time)
            self.say("one step to learn how long trajectories are")
            seen, _ = await self._rollout(0)
            measured = []
            for number in range(1, steps + 1):
                self.say(f"step {number} of {steps}")
                measured.append(await self._step(number))
        return seen, model, rate, measured

    async def _rollout(self, number: int) -> tuple[list[RolloutTree], float]:
        size = self.config.train.prompts
        await self.setup.agent.engine.publish(self.setup.model, number)
        before = time.process_time()
        trees = await rollout_many(
            [self._task(number * size + place) for place in range(size)],
            self.setup.agent,
            settings=self.config.rollout,
            entropy=self.config.entropy,
            seed_parts=("check", number),
        )
        return trees, time.process_time() - before

    def _task(self, place: int) -> Task:
        return self.setup.tasks[place % len(self.setup.tasks)]

    async def _step(self, number: int) -> _Step:
        """Roll out, and make an update in which every group has signal."""
        stats: Any = self.setup.agent.engine
        stats.stats = EngineStats()
        trees, seconds = await self._rollout(number)
        computed = float(stats.stats.computed_tokens)
        scored = [tree.with_outcomes([Outcome(float(n % 2)) for n in range(len(tree.leaves))]) for tree in trees]
        credits = assign_all(scored, self.config.credit, None)
        before = time.process_time()
        self.setup.learner.update(scored, credits)
        update, counted = time.process_time() - before, work_of(trees)
        operations = gradient_operations(self.shape, counted.unique, counted.labels, counted.pairs)
        return _Step(counted, computed, operations, seconds, update)

    def rows(self, seen: Sequence[RolloutTree], model: Replica, rate: float, steps: Sequence[_Step]) -> list[Row]:
        """Predictions from the first step's trees beside what the others gave."""
        mean, share = trajectory_of(seen), share_of(seen)
        rollout, prompts = with_share(self.config.rollout, share), self.config.train.prompts
        paper = work(rollout, mean, prompts, self.config.entropy.window)
        self.say(f"a mean trajectory: {mean}; the rule fires after {share:.0%} of the results")
        busy = engine_phase(paper, model, 1, decoding(paper, model, 1, prompts)).seconds
        operations = gradient_operations(self.shape, paper.unique, paper.labels, paper.pairs)

        def row(name: str, predicted: float, measured: Callable[[_Step], float]) -> Row:
            return Row(name, predicted, tuple(measured(step) for step in steps))

        return [
            row("tokens sampled", paper.sampled, lambda step: step.work.sampled),
            row("tool calls", paper.calls, lambda step: step.work.calls),
            row("tokens, each once", paper.unique, lambda step: step.work.unique),
            row("rho", paper.sharing, lambda step: step.work.sharing),
            row("positions through the engine", paper.unique, lambda step: step.computed),
            row("operations of the update", operations, lambda step: step.operations),
            row("rollout, CPU s, on paper", busy, lambda step: step.rollout),
            row("rollout, CPU s, simulated", self._simulated(mean, share, model, seen), lambda step: step.rollout),
            row("update, CPU s", operations / rate, lambda step: step.update),
            Row("update, CPU s, counts known", 1.0, tuple(s.update / (s.operations / rate) for s in steps)),
        ]

    def _simulated(self, mean: Trajectory, share: float, model: Replica, seen: Sequence[RolloutTree]) -> float:
        """Seconds that the simulated engine is busy."""
        scene = Scene(
            rollout=with_share(self.config.rollout, share),
            mean=mean,
            prompts=self.config.train.prompts,
            replica=model,
            replicas=1,
            workers=64,
            mix=mix_of(seen),
            vocabulary=self.shape.vocabulary,
            window=self.config.entropy.window,
        )
        return simulate(scene).engine.stats.seconds


async def step_pace(engine: Engine, shape: Shape) -> Replica:
    """The local engine as a replica: median seconds of a step with few and with many sequences, a line through both."""
    await _sampled(engine, shape, 8, seed=0)  # warm
    tries = [[await _sampled(engine, shape, rows, seed=n) for rows in (_FEW, _MANY)] for n in range(_TRIES)]
    few, many = (median(seconds) for seconds in zip(*tries, strict=True))
    per_row = max((many - few) / (_MANY - _FEW), 1e-9)
    return Replica(
        flops=(shape.per_token + shape.per_label) / per_row,
        bandwidth=1e15,
        room=1 << 18,
        weights=0.0,
        kv=1.0,
        token=shape.per_token,
        label=shape.per_label,
        pair=0.0,
        overhead=max(few - _FEW * per_row, 0.0),
        chunk=4096,
        rows=256,
    )


async def _sampled(engine: Engine, shape: Shape, rows: int, *, seed: int) -> float:
    """CPU seconds of a step of `rows` sequences: random prompts, no ends, the prefill of 16 tokens each included."""
    params = SampleParams(max_tokens=_NEW, end_tokens=(shape.vocabulary,))
    random = np.random.default_rng((rows, seed))
    prompts = [random.integers(0, shape.vocabulary, 16).tolist() for _ in range(rows)]
    started, steps = time.process_time(), engine.stats.steps
    await asyncio.gather(*(engine.sample(prompt, params, place) for place, prompt in enumerate(prompts)))
    return (time.process_time() - started) / (engine.stats.steps - steps)


def lines(rows: Sequence[Row]) -> list[str]:
    """A table."""
    shown = [f"{'of one step':<32}{'predicted':>14}{'measured':>14}{'ratio':>8}  [least, most]"]
    for row in rows:
        least, most = row.ends
        middle = median(row.measured)
        figures = f"{_figure(row.predicted):>14}{_figure(middle):>14}{row.ratio:>8.2f}"
        shown.append(f"{row.name:<32}{figures}  [{least:.2f}, {most:.2f}]")
    return shown


def _figure(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.3g}"
