"""200 prompts of 16 trajectories with one tool call in twenty failing: all arrive, and nothing is left behind."""

import asyncio
import gc
import logging
import random
import threading
from collections import Counter

import psutil
import pytest
from faulty_tool import FAULTS, FaultyTool
from rollout_fakes import VOCAB, ToyDialect, ToyTool, current, decode

from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.reward.compose import score
from arpo.reward.settings import RewardSettings
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import BernoulliRule, EntropySettings, RolloutSettings
from arpo.task import ask
from arpo.tools.toolbox import Limit, ToolBox
from arpo.tree import Finish, RolloutTree

PROMPTS, TOTAL, BATCH = 200, 16, 20
LIMIT, AT_ONCE = 0.15, 64
SETTINGS = RolloutSettings(
    total=TOTAL, initial=8, max_tokens=200, max_calls=4, branching=BernoulliRule(base_probability=0.4, entropy_weight=0)
)
GROWTH = 5 << 20
"""Bytes that the process may grow in the second half: measured 0.9 MiB, and 8.9 if all trees are kept."""


class Forgetful(ScriptedEngine):
    """Keeps no record of what it was asked: the record would be the only thing that grows."""

    async def sample(self, tokens, params, seed):
        segment = await super().sample(tokens, params, seed)
        self.requests.clear()
        return segment


def talk(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
    """Two to four turns; each asks one of the two tools for something of its own, the last one answers."""
    luck = random.Random(seed)
    turn, _ = current(prefix)
    said = luck.choice(("ab", "c ", "d", "e a"))
    tag = luck.choice("sp")
    goes_on = turn < 1 or (turn < 4 and luck.random() < 0.6)
    text = f"{said}<{tag}>{luck.randrange(10_000)}</{tag}>" if goes_on else f"{said}[{luck.choice('42')}]$"
    return [Scripted(ord(char), -0.5, luck.random()) for char in text]


def faulty_tools() -> list[FaultyTool]:
    """One in the event loop, one in threads."""
    return [
        FaultyTool(ToyTool("search"), seed=1, limit=LIMIT, late=1.0),
        FaultyTool(ToyTool("python"), seed=2, limit=LIMIT, late=1.0, blocking=True),
    ]


def check_group(tree: RolloutTree, task) -> Counter[str]:
    """Exactly M trajectories; no reward where the infrastructure failed, one everywhere else. Returns the ends."""
    ends = [tree.segments[leaf].finish for leaf in tree.leaves]
    assert len(ends) == TOTAL
    rewards = [outcome.reward for outcome in score(tree, task, ToyDialect(), RewardSettings())]
    assert [reward is None for reward in rewards] == [end is Finish.ERROR for end in ends]
    return Counter(str(end) for end in ends)


def footprint() -> tuple[int, int, int]:
    """Bytes, threads, file descriptors."""
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss, threading.active_count(), process.num_fds()


async def roll(tools: ToolBox) -> tuple[Counter[str], list[int]]:
    """All prompts, a batch at a time, whose trees are checked and forgotten. Returns ends and memory per batch."""
    agent = Agent(Forgetful(talk, decode, end_tokens=ToyDialect.end_tokens), ToyDialect(), tools, VOCAB)
    ends: Counter[str] = Counter()
    memory = []
    for first in range(0, PROMPTS, BATCH):
        tasks = [ask("why?", "42", id=f"p{number}") for number in range(first, first + BATCH)]
        trees = await rollout_many(
            tasks, agent, settings=SETTINGS, entropy=EntropySettings(window=4), seed_parts=("soak",)
        )
        for tree, task in zip(trees, tasks, strict=True):
            ends += check_group(tree, task)
        del trees
        memory.append(footprint()[0])
    await tools.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return ends, memory


@pytest.mark.slow
def test_rollouts_survive_faulty_tools_and_leave_nothing_behind(caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    asyncio.run(asyncio.sleep(0))
    _, threads, files = footprint()
    faulty = faulty_tools()
    tools = ToolBox(faulty, {tool.name: Limit(timeout=LIMIT, concurrency=AT_ONCE, grace=0.02) for tool in faulty})
    ends, memory = asyncio.run(roll(tools))
    assert ends.total() == PROMPTS * TOTAL
    assert ends["stop"] > PROMPTS * TOTAL / 2
    for tool in faulty:
        stats = tools.stats[tool.name]
        assert min(tool.met[fault] for fault in FAULTS) > 10
        assert 0 < stats.abandoned <= stats.timeouts
        assert stats.in_flight == AT_ONCE
        assert stats.waited > 0
        assert tool.met["exception"] < stats.infra_errors <= tool.met["exception"] + tool.met["garbage"]
    assert tools.stats["search"].timeouts >= faulty[0].met["timeout"]
    assert ends["error"] > 0
    assert memory[-1] - memory[len(memory) // 2 - 1] < GROWTH
    assert footprint()[1:] == (threads, files)
