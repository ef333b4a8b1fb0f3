"""Whether long rollouts stay flat: memory, threads, file descriptors and tasks while tools fail.

    OMP_NUM_THREADS=1 python benchmarks/soak.py [--prompts 200] [--trajectories 16] [--rate 0.05] [--json PATH]

The pocket policy, the local engine and the real factbook tools; of the tool calls the share `--rate` goes wrong, spread
evenly over time-outs, exceptions, garbage and hangs (tests/support/faulty_tool.py). Python runs in threads here, so
that both ways of running a tool are under load. Every batch of prompts is rolled out, checked (exactly M trajectories,
no reward where the infrastructure failed) and forgotten, then one line is printed.

Flat means: in the second half resident memory grows by at most 16 MiB, there are no more threads and descriptors than
in the first but for a few (a call that hangs has one for its time), and at the end no task is left and no thread or
descriptor more than after a first prompt that warms up. Exit code 1 if not flat, 2 if a fault of some kind was never
met.
"""

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from faulty_tool import FAULTS, FaultyTool

from arpo.config.load import load
from arpo.config.schema import Config
from arpo.config.wire import build_policy, build_tasks
from arpo.reward.compose import score
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many
from arpo.task import Task
from arpo.tools.toolbox import Limit, ToolBox
from arpo.tree import Finish, RolloutTree

LIMIT = Limit(timeout=1.0, concurrency=64, grace=0.1)
LATE = 2.0
GROWTH = 16.0
SLACK = 8
DEMO = Path(__file__).parents[1] / "src" / "arpo" / "assets" / "demo.toml"


@dataclass(frozen=True)
class Sample:
    """The process after a batch. `rss` in MiB; `trajectories`, `lost` and `faults` since the start."""

    seconds: float
    prompts: int
    trajectories: int
    lost: int
    faults: int
    rss: float
    threads: int
    fds: int
    tasks: int


class Soak:
    """The run: agent with faulty tools, counters, one sample per batch."""

    def __init__(self, config: Config, tasks: Sequence[Task], rate: float) -> None:
        self.config, self.tasks = config, tasks
        policy = build_policy(config, tasks)
        self.faulty = [
            FaultyTool(tool, seed=7, limit=LIMIT.timeout, rate=rate, late=LATE, blocking=tool.name == "python")
            for tool in policy.agent.toolbox.tools
        ]
        toolbox = ToolBox(self.faulty, {tool.name: LIMIT for tool in self.faulty})
        self.agent: Agent = replace(policy.agent, toolbox=toolbox)
        self.ends: Counter[Finish] = Counter()
        self.started = time.perf_counter()

    async def run(self, batch: int) -> list[Sample]:
        await self.roll(self.tasks[:1])
        samples = [self.sample(0)]
        print(line(samples[0]), flush=True)
        for first in range(0, len(self.tasks), batch):
            await self.roll(self.tasks[first : first + batch])
            samples.append(self.sample(min(first + batch, len(self.tasks))))
            print(line(samples[-1]), flush=True)
        await self.agent.close()
        samples.append(self.sample(len(self.tasks)))
        print(line(samples[-1]) + "  closed")
        return samples

    async def roll(self, tasks: Sequence[Task]) -> None:
        config = self.config
        trees = await rollout_many(
            tasks, self.agent, settings=config.rollout, entropy=config.entropy, seed_parts=("soak",)
        )
        for tree, task in zip(trees, tasks, strict=True):
            self.check(tree, task)

    def check(self, tree: RolloutTree, task: Task) -> None:
        ends = [tree.segments[leaf].finish for leaf in tree.leaves]
        rewards = [outcome.reward for outcome in score(tree, task, self.agent.dialect, self.config.reward)]
        if len(ends) != self.config.rollout.total:
            sys.exit(f"task {task.id}: {len(ends)} trajectories")
        if [reward is None for reward in rewards] != [end is Finish.ERROR for end in ends]:
            sys.exit(f"task {task.id}: a reward for what the infrastructure lost, or none for what it did not")
        self.ends.update(ends)

    def sample(self, prompts: int) -> Sample:
        gc.collect()
        process = psutil.Process()
        return Sample(
            seconds=time.perf_counter() - self.started,
            prompts=prompts,
            trajectories=self.ends.total(),
            lost=self.ends[Finish.ERROR],
            faults=sum(tool.met.total() for tool in self.faulty),
            rss=process.memory_info().rss / 2**20,
            threads=process.num_threads(),
            fds=process.num_fds(),
            tasks=len(asyncio.all_tasks()) - 1,
        )


def line(s: Sample) -> str:
    counts = f"{s.prompts:7} {s.trajectories:12} {s.lost:6} {s.faults:6}"
    return f"{s.seconds:7.1f} {counts} {s.rss:9.1f} {s.threads:7} {s.fds:5} {s.tasks:5}"


def verdict(samples: Sequence[Sample]) -> list[str]:
    """What is not flat. The first sample is the one after the warm-up, the last the one after closing."""
    *running, closed = samples[1:]
    half = len(running) // 2
    first, second = running[: half or 1], running[half:]
    grown = second[-1].rss - first[-1].rss
    complaints = []
    if grown > GROWTH:
        complaints.append(f"memory grew by {grown:.1f} MiB in the second half")
    for name in ("threads", "fds"):
        before, after = (max(getattr(s, name) for s in part) for part in (first, second))
        if after > before + SLACK:
            complaints.append(f"{name} grew from {before} to {after}")
        if getattr(closed, name) > getattr(samples[0], name):
            complaints.append(f"{getattr(closed, name)} {name} after closing, {getattr(samples[0], name)} at the start")
    if closed.tasks:
        complaints.append(f"{closed.tasks} tasks left")
    return complaints


def table(soak: Soak) -> str:
    rows = ["", "tool     calls     ok  errors  timeouts  infra  abandoned  waited s  at once  " + "  ".join(FAULTS)]
    for tool in soak.faulty:
        s = soak.agent.toolbox.stats[tool.name]
        met = "  ".join(f"{tool.met[fault]:{len(fault)}}" for fault in FAULTS)
        rows.append(
            f"{tool.name:7} {s.calls:6} {s.ok:6} {s.errors:7} {s.timeouts:9} {s.infra_errors:6} {s.abandoned:10} "
            f"{s.waited:9.1f} {s.in_flight:8}  {met}"
        )
    return "\n".join([*rows, "ends: " + ", ".join(f"{end} {count}" for end, count in soak.ends.most_common())])


def configuration(prompts: int, trajectories: int) -> Config:
    return load(
        [DEMO],
        [
            f"data.tasks={prompts}",
            f"rollout.total={trajectories}",
            f"rollout.initial={max(trajectories // 2, 1)}",
            "run.seed=0",
            # The store of keys and values grows to its budget by doubling; a small one is full-grown in the first half.
            "engine.max_cached_tokens=32768",
        ],
        environ={},
    ).config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the samples and the verdict here")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    config = configuration(options.prompts, options.trajectories)
    soak = Soak(config, build_tasks(config)[: options.prompts], options.rate)
    print("seconds prompts trajectories   lost faults   RSS MiB threads   fds tasks")
    samples = asyncio.run(soak.run(options.batch))
    print(table(soak))
    complaints = verdict(samples)
    print("flat" if not complaints else "NOT FLAT: " + "; ".join(complaints))
    if options.json:
        rows = {"samples": [asdict(sample) for sample in samples], "complaints": complaints}
        options.json.write_text(json.dumps(rows, indent=1))
    missing = [fault for fault in FAULTS if not sum(tool.met[fault] for tool in soak.faulty)]
    if missing:
        print("never met: " + ", ".join(missing))
    sys.exit(1 if complaints else 2 if missing else 0)


if __name__ == "__main__":
    main()
