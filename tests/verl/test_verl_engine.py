"""The engine over verl's client: where a segment ends, what an answer must hold, which errors mean what."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rollout_fakes import decode, encode

from arpo.engine.base import SampleParams
from arpo.errors import ConfigError, EngineDownError, EngineError
from arpo.tree import Finish
from arpo.verl.engine import VerlEngine

PARAMS = SampleParams(max_tokens=12, stop=("</s>",), end_tokens=(ord("$"),))


class Tokenizer:
    """One token per character."""

    eos_token_id = ord("$")

    def __len__(self) -> int:
        return 128

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return decode(tokens)


class Client:
    """Gives what it was told to, one reply after another."""

    def __init__(self, *replies: Any, **extra: Any) -> None:
        self.replies, self.extra = list(replies), extra
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append((request_id, decode(prompt_ids), sampling_params))
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        if not isinstance(reply, str):
            return reply
        tokens = encode(reply).tolist()
        extra = {"global_steps": 3, "min_global_steps": 3, "max_global_steps": 3} | self.extra
        return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens), extra_fields=extra)


def engine(client: Client, **options: Any) -> VerlEngine:
    return VerlEngine(client, Tokenizer(), vocab_size=128, max_context=64, **options).of("tree", 7)


async def test_a_segment_ends_where_our_rules_say() -> None:
    client = Client("<s>a</s>bc", "de$fg", "abcdefghijklmnop")
    over = engine(client)
    call = await over.sample(encode("q"), PARAMS, 1)
    stop = await over.sample(encode("q"), PARAMS, 2)
    length = await over.sample(encode("q"), PARAMS, 3)
    assert (decode(call.tokens), call.finish) == ("<s>a</s>", Finish.CALL)
    assert (decode(stop.tokens), stop.finish) == ("de$", Finish.STOP)
    assert (decode(length.tokens), length.finish) == ("abcdefghijkl", Finish.LENGTH)
    assert call.version == over.version == 3
    assert np.array_equal(call.entropies, -call.logprobs)
    assert {request for request, _, _ in client.asked} == {"tree"}
    assert "seed" not in client.asked[0][2]


async def test_a_pause_of_the_servers_own_is_continued() -> None:
    client = Client("ab", "cd$")
    segment = await engine(client, seeded=True).sample(encode("q"), PARAMS, 1)
    assert (decode(segment.tokens), segment.finish) == ("abcd$", Finish.STOP)
    assert [prefix for _, prefix, _ in client.asked] == ["q", "qab"]
    assert [asked["max_tokens"] for _, _, asked in client.asked] == [12, 10]
    assert client.asked[0][2]["seed"] != client.asked[1][2]["seed"]


async def test_a_stop_string_cut_in_two_is_still_one() -> None:
    client = Client("s>", "never asked")
    segment = await engine(client).sample(encode("x</"), PARAMS, 1)
    assert (decode(segment.tokens), segment.finish) == ("s>", Finish.CALL)
    assert client.asked[0][2]["max_tokens"] == 2


async def test_top_log_probs_become_brackets() -> None:
    rows = [[-0.5, -1.0], [-0.5, -1.0]]
    segment = await engine(Client("a$", arpo_top_logprobs=rows), top_k=2).sample(encode("q"), PARAMS, 1)
    assert segment.slacks.shape == segment.entropies.shape == (2,)
    assert (segment.slacks > 0).all()
    with pytest.raises(EngineError, match="2 log-probs"):
        await engine(Client("a$"), top_k=2).sample(encode("q"), PARAMS, 1)


async def test_answers_that_cannot_be_used_cost_the_request() -> None:
    from verl.workers.rollout.replica import TokenOutput

    bad = {
        "no token": TokenOutput(token_ids=[], log_probs=None, stop_reason="aborted"),
        "calculate_log_probs": TokenOutput(token_ids=[97], log_probs=None),
        "finite": TokenOutput(token_ids=[97], log_probs=[float("nan")]),
    }
    for message, output in bad.items():
        with pytest.raises(EngineError, match=message) as caught:
            await engine(Client(output)).sample(encode("q"), PARAMS, 1)
        assert not isinstance(caught.value, EngineDownError)
    with pytest.raises(EngineError, match="no room"):
        await engine(Client("a$")).sample(encode("q" * 64), PARAMS, 1)


async def test_a_dead_actor_is_the_end_and_a_failed_call_is_not() -> None:
    from ray.exceptions import RayActorError, RayTaskError

    failed = RayTaskError("generate", "Traceback\nValueError: too long", ValueError("too long"))
    none_left = RayTaskError(
        "acquire", "Traceback\nRuntimeError: No available servers in load balancer", RuntimeError()
    )
    for error, kind in ((RayActorError(), EngineDownError), (none_left, EngineDownError), (failed, EngineError)):
        with pytest.raises(EngineError) as caught:
            await engine(Client(error)).sample(encode("q"), PARAMS, 1)
        assert type(caught.value) is kind


async def test_weights_are_verls() -> None:
    over = engine(Client())
    await over.publish(None, 7)
    with pytest.raises(ConfigError, match="verl's trainer"):
        await over.publish(None, 8)
