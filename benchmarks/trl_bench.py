"""A step of training, ours against TRL's, in turns: `make bench-trl`, or in the environment that it sets up:

    .venv-trl/bin/python benchmarks/trl_bench.py [--rounds 5] [--prompts 8] [--group 16] [--json PATH]

A step is rollout, reward, gradient and optimiser step on `--prompts` groups of `--group` trajectories of the pocket
policy on factbook questions with the search and the Python tool. TRL's GRPOTrainer runs with its own tool loop; after
each of its steps our loop makes one with GRPO's settings and one with ARPO's on the same questions. All three start
from the same weights and learn at the paper's rate of 1e-6, so they keep saying much the same. The first step warms up.
Same process, threads, dtype (float32), limits of tokens and calls, one optimiser step each, no gradient checkpointing.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import trl
from rich.console import Console
from trl_side import Job, Tools, Turns, make_trainer

from arpo.bench.report import write_json
from arpo.bench.rollout_arms import Run
from arpo.bench.rollout_report import render
from arpo.bench.rollout_rows import Pair, RolloutRow, rollout_row
from arpo.bench.rollout_tools import delayed, parse_latency
from arpo.config.load import load
from arpo.config.schema import Config
from arpo.config.wire import Policy, build_learner, build_policy, build_toolbox
from arpo.credit.base import assign_all
from arpo.data.factbook.questions import make_tasks
from arpo.engine.models import load_policy
from arpo.engine.stats import EngineStats
from arpo.reward.compose import score
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many

PRESETS = ("grpo", "arpo")
"""GRPO's settings have the same algorithm as TRL's; ARPO's have branches from the middle of half of the group."""


class OurSide:
    """The steps of our training loop, without its files."""

    def __init__(self, config: Config, latency: Any) -> None:
        policy: Policy = build_policy(config)
        agent = policy.agent
        toolbox = delayed(agent.toolbox, latency)
        self.config, self.model = config, policy.model
        self.agent = Agent(agent.engine, agent.dialect, toolbox, agent.vocab_size)
        self.learner = build_learner(config, policy.model)

    def step(self, tasks: Any, number: int) -> tuple[Run, float]:
        """Rollout to publication; what it took, and the seconds of the rollout in it."""
        return asyncio.run(self._step(tasks, number))

    async def _step(self, tasks: Any, number: int) -> tuple[Run, float]:
        config, engine = self.config, self.agent.engine
        engine.stats = EngineStats()
        wall, cpu = time.perf_counter(), time.process_time()
        trees = await rollout_many(
            tasks, self.agent, settings=config.rollout, entropy=config.entropy, seed_parts=("bench", number)
        )
        rolled = time.perf_counter() - wall
        scored = [
            tree.with_outcomes(score(tree, task, self.agent.dialect, config.reward))
            for tree, task in zip(trees, tasks, strict=True)
        ]
        self.learner.update(scored, assign_all(scored, config.credit, None))
        await engine.publish(self.model, number + 1)
        run = Run(
            wall=time.perf_counter() - wall,
            cpu=time.process_time() - cpu,
            busy=0.0,
            trajectories=sum(len(tree.leaves) for tree in trees),
            sampled=sum(tree.generated_tokens for tree in trees),
            unique=sum(len(segment) for tree in trees for segment in tree.segments),
            computed=engine.stats.computed_tokens,
            requested=sum(tree.requested_calls for tree in trees),
            executed=sum(tree.tool_calls for tree in trees),
        )
        return run, rolled


def configuration(preset: str, job: Job) -> Config:
    """The packaged settings of that algorithm at the size of the job."""
    initial = job.group if preset == "grpo" else job.group // 2
    overrides = {
        "model.path": "pocket",
        "model.device": "cpu",
        "rollout.total": job.group,
        "rollout.initial": initial,
        "rollout.max_tokens": job.max_tokens,
        "rollout.max_calls": job.max_calls,
        "optim.lr": job.lr,
        "train.prompts": job.prompts,
        "train.mini_batch": job.prompts,
        "train.steps": job.steps,
    }
    changes = [f"{key}={value}" for key, value in overrides.items()]
    return load([], changes, preset="grpo" if preset == "grpo" else "paper", environ={}).config


def rows(job: Job, theirs: list[Any], ours: dict[str, list[Any]], tools: str) -> list[RolloutRow]:
    """One row per algorithm of ours; the first step is left out."""
    return [
        rollout_row(
            [Pair(own[0], other[0]) for own, other in zip(ours[preset][1:], theirs[1:], strict=True)],
            model="pocket",
            tools=tools,
            versus="trl",
            seconds_rollout=statistics.median(seconds for _, seconds in ours[preset][1:]),
            seconds_rollout_versus=statistics.median(seconds for _, seconds in theirs[1:]),
            prompts=job.prompts,
            group=f"{job.group}+0" if preset == "grpo" else f"{job.group // 2}+{job.group - job.group // 2}",
            max_tokens=job.max_tokens,
            device="cpu",
            dtype="float32",
        )
        for preset in PRESETS
    ]


def compare(job: Job, tools: str) -> list[RolloutRow]:
    """Train on both sides, in turns."""
    latency = parse_latency(tools)
    sides = {preset: OurSide(configuration(preset, job), latency) for preset in PRESETS}
    ours: dict[str, list[Any]] = {preset: [] for preset in PRESETS}

    def others(step: int) -> None:
        for preset in PRESETS if step % 2 else reversed(PRESETS):
            ours[preset].append(sides[preset].step(job.batch(step), step))
        print(f"step {step + 1} of {job.steps}: {turns.runs[-1][0].wall:.1f} s of TRL", flush=True)

    own = Tools(delayed(build_toolbox(configuration("grpo", job)), latency))
    turns = Turns(own, job, others)
    model, tokenizer = load_policy("pocket", device="cpu")
    with tempfile.TemporaryDirectory() as out:
        make_trainer(model, tokenizer, sides["grpo"].agent.dialect, own, job, out, turns).train()
    return rows(job, turns.runs, ours, tools)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=16, help="trajectories per prompt")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each side")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--max-calls", type=int, default=7)
    parser.add_argument("--micro-rows", type=int, default=32, help="rows of one pass of TRL's gradient")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--tools", default="0", help="latency: 0, 50ms, heavy; TRL makes its calls one by one")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    steps = asked.rounds + 1
    job = Job(
        tasks=make_tasks("train", asked.prompts * steps, 0),
        prompts=asked.prompts,
        group=asked.group,
        max_tokens=asked.max_tokens,
        max_calls=asked.max_calls,
        steps=steps,
        lr=asked.lr,
        micro_rows=min(asked.micro_rows, asked.prompts * asked.group),
    )
    measured = compare(job, asked.tools)
    Console().print(f"TRL {trl.__version__}; a step is rollout and update", render(measured))
    for row in measured:
        print(f"{row.group}: rollout {row.seconds_rollout:.2f} s of {row.seconds:.2f} s; "
              f"TRL {row.seconds_rollout_versus:.2f} s of {row.seconds_versus:.2f} s")  # fmt: skip
    if asked.json is not None:
        write_json(measured, asked.json)


if __name__ == "__main__":
    main()
