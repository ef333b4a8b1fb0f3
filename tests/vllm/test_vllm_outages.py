"""vLLM dies in the middle of a rollout: one clear error, no tree, no reward. Runs last: it takes both engines down."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from vllm_rollouts import agent_of, factbook_tasks, rollout_settings

from arpo.engine.base import SampleParams
from arpo.errors import EngineDownError
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import EntropySettings

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def children(pid: int, name: str) -> list[int]:
    """Direct children of a process whose command line holds `name`, from /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and name in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


async def dies_midway(engine: Any, policy: tuple[Any, Any], victim: int) -> str:
    """Start a rollout, kill `victim` while it samples; what the rollout then says."""
    agent = agent_of(engine, policy[1], policy[0].config.vocab_size)
    settings = rollout_settings(max_tokens=400)
    job = asyncio.create_task(
        rollout_many(factbook_tasks(2), agent, settings=settings, entropy=EntropySettings(), seed_parts=(1, "vllm"))
    )
    while not engine.stats.calls:
        await asyncio.sleep(0.05)
        assert not job.done()
    os.kill(victim, signal.SIGKILL)
    tasks = len(asyncio.all_tasks())
    with pytest.raises(EngineDownError) as error:
        await job
    assert len(asyncio.all_tasks()) < tasks
    with pytest.raises(EngineDownError):
        await engine.sample(policy[1].encode("Once upon a time"), SampleParams(2), 0)
    return str(error.value)


async def test_the_process_in_this_process_dies(
    engine_inside: Any, policy: tuple[Any, Any], figures: dict[str, str]
) -> None:
    (core,) = children(os.getpid(), "VLLM::EngineCore")
    (worker,) = children(core, "VLLM::Worker")
    said = await dies_midway(engine_inside, policy, worker)
    figures["vLLM's worker killed mid-rollout, in process"] = f"EngineDownError, no tree: {said}"
    await engine_inside.close()
    assert children(os.getpid(), "VLLM::EngineCore") == []


async def test_the_server_dies(
    engine_server: Any, server: Any, policy: tuple[Any, Any], figures: dict[str, str]
) -> None:
    helpers = children(server.process.pid, "VLLM::EngineCore")
    said = await dies_midway(engine_server, policy, server.process.pid)
    figures["server killed mid-rollout"] = f"EngineDownError, no tree: {said}"
    for pid in helpers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # gone with its parent
