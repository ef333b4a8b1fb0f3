"""The top-K replica beside the real verl: it is registered, and its conversion reads what vLLM answers.

vLLM is not in this environment: its engine is played by one that answers with the objects of vLLM's shape, and verl's
server by a class with verl's method names. Neither a GPU nor vLLM has run this replica.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("verl")

from arpo.verl import topk


def test_verl_finds_the_replica_and_the_adapter_by_name() -> None:
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    topk.register()
    assert RolloutReplicaRegistry._registry["vllm_topk"] is topk._load
    assert _ROLLOUT_REGISTRY["vllm_topk", "async"] == _ROLLOUT_REGISTRY["vllm", "async"]


@dataclass
class Logprob:
    logprob: float
    rank: int = 1


@dataclass
class Completion:
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Logprob]] | None


@dataclass
class Answer:
    outputs: Sequence[Completion]


@dataclass
class Params:
    logprobs: int | None


class Engine:
    """Answers every request with its own number in the log-probs, after letting the others go first."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    async def generate(self, *, prompt: int, sampling_params: Params) -> AsyncIterator[Answer]:
        self.asked.append(sampling_params.logprobs)
        for length in (1, 2):
            await asyncio.sleep(0)
            tables = [{7: Logprob(-9.0, 5), 1: Logprob(-0.1 * prompt), 2: Logprob(-2.0), 3: Logprob(-1.0)}] * length
            yield Answer([Completion([7] * length, None if sampling_params.logprobs is None else tables)])

    def version(self) -> str:
        return "of the engine"


@dataclass
class Output:
    token_ids: Sequence[int]
    log_probs: Sequence[float] | None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Server:
    """What `AsksForTopK` relies on of verl's server."""

    def __init__(self, custom: Mapping[str, Any] | None) -> None:
        self.config = type("Config", (), {"custom": custom})()

    async def run_server(self, args: Any) -> None:
        self.engine = Engine()

    async def generate(self, prompt: int, logprobs: bool = True) -> Output:
        final = None
        async for output in self.engine.generate(prompt=prompt, sampling_params=Params(0 if logprobs else None)):
            final = output
        assert final is not None
        own = final.outputs[0]
        taken = (
            None
            if own.logprobs is None
            else [row[i].logprob for row, i in zip(own.logprobs, own.token_ids, strict=True)]
        )
        return Output(own.token_ids, taken)


class TopKServer(topk.AsksForTopK, Server):
    pass


async def started(custom: Mapping[str, Any] | None = None) -> TopKServer:
    server = TopKServer({"arpo_top_k": 3} if custom is None else custom)
    await server.run_server(None)
    return server


def test_the_largest_log_probs_come_beside_the_sampled_tokens_own() -> None:
    async def ask() -> tuple[Output, Any]:
        server = await started()
        return await server.generate(5), server.engine

    output, engine = asyncio.run(ask())
    assert engine.asked == [3]
    assert output.log_probs == [-9.0, -9.0]
    assert output.extra_fields["arpo_top_logprobs"] == [[-0.5, -1.0, -2.0]] * 2
    assert engine.version() == "of the engine"


def test_requests_at_once_do_not_mix_up_their_answers() -> None:
    async def ask() -> list[Output]:
        server = await started()
        return await asyncio.gather(*(server.generate(prompt) for prompt in range(1, 9)))

    outputs = asyncio.run(ask())
    firsts = [output.extra_fields["arpo_top_logprobs"][0][0] for output in outputs]
    assert firsts == pytest.approx([-0.1 * prompt for prompt in range(1, 9)])


def test_who_wants_no_log_probs_gets_none() -> None:
    async def ask() -> tuple[Output, Any]:
        server = await started()
        return await server.generate(1, logprobs=False), server.engine

    output, engine = asyncio.run(ask())
    assert engine.asked == [None]
    assert output.extra_fields == {}


def test_fewer_than_k_are_refused() -> None:
    with pytest.raises(ValueError, match="token 1 came with 1 log-probs instead of 2"):
        topk.top_logprobs([{1: Logprob(-1.0), 2: Logprob(-2.0)}, {1: Logprob(-1.0)}], 2)


@pytest.mark.parametrize("custom", [{}, {"arpo_top_k": 0}, {"arpo_top_k": "20"}, {"arpo_top_k": True}])
def test_a_missing_k_is_said_before_the_server_starts(custom: Mapping[str, Any]) -> None:
    from arpo.errors import ConfigError

    with pytest.raises(ConfigError, match="arpo_top_k"):
        asyncio.run(started(custom))
