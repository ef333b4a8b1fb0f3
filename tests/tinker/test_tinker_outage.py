"""A server that is killed, restarted or asked for what it does not have: errors, never rewards."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker_server
from tinker_server import RANK

from arpo.config.load import load
from arpo.config.wire import build_policy, build_setup, build_tasks
from arpo.engine.base import SampleParams
from arpo.engine.settings import TinkerSettings
from arpo.engine.tinker_service import TinkerService
from arpo.errors import ConfigError, EngineDownError
from arpo.rollout.scheduler import check, rollout_many


def test_more_than_the_server_gives_is_refused_at_start_up(tuned: Callable[..., list[str]]) -> None:
    """Entropy of a single token cannot be estimated from the token itself."""
    config = load([], tuned("rollout.branching.type=entropy", "rollout.branching.at=state"), environ={}).config
    said: list[str] = []
    setup = build_setup(config, said.append)
    able = setup.agent.engine.capabilities
    assert (able.entropy, able.max_context, able.weight_update) == ("sampled", 1024, True)
    assert any("no top log-probs" in line for line in said)
    with pytest.raises(ConfigError, match=r"rollout\.branching\.at"):
        check(config.rollout, able, entropy=config.entropy, vocab_size=512)


def test_a_bound_that_the_server_would_not_keep(tuned: Callable[..., list[str]]) -> None:
    config = load([], tuned("optim.max_grad_norm=1.0"), environ={}).config
    with pytest.raises(ConfigError, match=r"optim\.max_grad_norm"):
        build_setup(config, print)


def test_a_rank_beyond_the_servers(settings: Any) -> None:
    service = TinkerService(settings.model_copy(update={"rank": 4 * RANK}), "pocket", seed=1)
    with pytest.raises(Exception, match=f"{4 * RANK}"):
        _ = service.training


def test_a_base_model_that_the_server_lacks(settings: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine\.base_model"):
        TinkerService(settings.model_copy(update={"base_model": "Qwen/Qwen3-8B"}), "pocket", seed=1)


async def test_equal_seeds_give_equal_segments(settings: Any) -> None:
    from arpo.engine.models import load_tokenizer
    from arpo.engine.tinker import make_engine

    tokenizer, size = load_tokenizer("pocket")
    built = make_engine(TinkerService(settings, "pocket", seed=1), tokenizer, settings, "pocket", vocab_size=size)
    prompt = tokenizer("What is the capital of Chad?")["input_ids"]
    params = SampleParams(max_tokens=32)

    first, second, *others = await asyncio.gather(*(built.sample(prompt, params, seed) for seed in (3, *range(3, 10))))

    assert first.tokens.tolist() == second.tokens.tolist()
    assert any(first.tokens.tolist() != other.tokens.tolist() for other in others)


def test_a_server_killed_in_the_middle_of_a_rollout(
    base: Path, tuned: Callable[..., list[str]], tmp_path: Path, figures: dict[str, str]
) -> None:
    """The API and its engine are gone at once: the rollout ends without a tree, and soon."""
    served = tinker_server.start(base, tmp_path)
    try:
        options = tuned(f"engine.base_url={served.url}", "train.prompts=3", "data.tasks=3")
        config = load([], options, environ={}).config
        killed: list[float] = []

        async def roll() -> None:
            async with build_policy(config) as policy:
                running = asyncio.ensure_future(
                    rollout_many(
                        build_tasks(config),
                        policy.agent,
                        settings=config.rollout,
                        entropy=config.entropy,
                        seed_parts=(0,),
                    )
                )
                while not policy.agent.engine.stats.calls and not running.done():
                    await asyncio.sleep(0.05)
                assert not running.done()
                served.kill()
                killed.append(time.monotonic())
                await running

        with pytest.raises(EngineDownError, match="--resume"):
            asyncio.run(roll())
        figures["seconds from the server's death to the error"] = f"{time.monotonic() - killed[0]:.1f}"
        with pytest.raises(EngineDownError, match=r"engine\.base_url"):
            TinkerService(TinkerSettings(base_url=served.url), "pocket", seed=1)
    finally:
        served.stop()
