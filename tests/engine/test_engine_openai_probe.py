"""Start-up: what the server gives is found out, and what cannot be used is refused with the remedy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from completion_server import VOCAB, Characters, CompletionServer, Reply, error, restless
from pydantic import ValidationError

from arpo.engine.openai import OpenAIEngine
from arpo.engine.registry import build
from arpo.engine.settings import ModelSettings, OpenAISettings
from arpo.errors import ConfigError, EngineDownError


def engine(server: CompletionServer, **options: Any) -> OpenAIEngine:
    return OpenAIEngine(Characters(), OpenAISettings(base_url=server.url, **options))


def refusal(server: CompletionServer, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        engine(server, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("api", "flavour", "mode", "processed", "truncated"),
    [
        ("openai", "vllm", "processed_logprobs", True, True),
        ("openai", "vllm", "raw_logprobs", False, False),
        ("sglang", "sglang", "processed_logprobs", True, False),
    ],
)
def test_whose_log_probs_they_are(api: str, flavour: str, mode: str, processed: bool, truncated: bool) -> None:
    with CompletionServer(flavour=flavour, logprobs_mode=mode) as server:
        served = engine(server, api=api)._served
        assert (served.processed, served.truncated) == (processed, truncated)
        assert served.model == "toy"


def sharp(prefix: Sequence[int]) -> np.ndarray:
    """One token has everything: truncation cannot be seen, the temperature can."""
    scores = restless(prefix)
    scores[7] += 60.0
    return scores


@pytest.mark.parametrize(("mode", "processed"), [("processed_logprobs", True), ("raw_logprobs", False)])
def test_a_distribution_with_one_token_still_tells_the_temperature(mode: str, processed: bool) -> None:
    with CompletionServer(sharp, logprobs_mode=mode) as server:
        served = engine(server)._served
        assert (served.processed, served.truncated) == (processed, True)


def test_a_flat_distribution_tells_nothing() -> None:
    with CompletionServer(lambda prefix: np.zeros(VOCAB)) as server:
        assert "equally likely" in refusal(server)


def test_capabilities() -> None:
    with CompletionServer(max_model_len=777) as server:
        assert engine(server).capabilities.max_context == 777
        assert engine(server, max_context=500).capabilities.max_context == 500
        assert engine(server, max_context=900).capabilities.max_context == 777
        assert (engine(server).capabilities.entropy, engine(server).capabilities.top_k) == ("topk", 20)
        assert (engine(server, top_k=0).capabilities.entropy, engine(server, top_k=0).version) == ("sampled", 0)


def test_the_probe_costs_a_handful_of_tokens() -> None:
    with CompletionServer() as server:
        engine(server)
        asked = [request for _, request in server.requests if request is not None]
        assert len(server.requests) == 4
        assert all(request["max_tokens"] == 1 for request in asked)


def on(path: str, change: Callable[[Reply], Reply]) -> Callable[[str, Any, Reply], Reply]:
    return lambda at, request, reply: change(reply) if at.endswith(path) else reply


def cards(*cards: dict[str, Any]) -> Callable[[str, Any, Reply], Reply]:
    return on("/models", lambda reply: Reply(body={"object": "list", "data": list(cards)}))


def test_a_server_that_does_not_say_how_long_a_sequence_may_be() -> None:
    with CompletionServer(tamper=cards({"id": "toy"})) as server:
        assert "engine.max_context" in refusal(server)
        assert engine(server, max_context=100).capabilities.max_context == 100


def test_which_model() -> None:
    two = cards({"id": "toy", "max_model_len": 9}, {"id": "other", "max_model_len": 9})
    with CompletionServer(tamper=two) as server:
        assert "serves toy, other; name one in engine.served_model" in refusal(server)
        assert engine(server, served_model="toy")._served.model == "toy"
        assert "did you mean 'toy'?" in refusal(server, served_model="toyy")
        assert "it serves toy, other" in refusal(server, served_model="qwen")


@pytest.mark.parametrize("body", [{"object": "list", "data": []}, {"detail": "?"}, [], "null"])
def test_no_list_of_models(body: Any) -> None:
    plain = {"content-type": "application/json"}
    with CompletionServer(tamper=on("/models", lambda reply: Reply(body=body, headers=plain))) as server:
        assert "lists no models" in refusal(server)


def test_the_other_protocol_is_named() -> None:
    with CompletionServer(flavour="sglang") as server:
        assert 'engine.api = "sglang"' in refusal(server)
    with CompletionServer() as server:
        assert 'engine.api = "openai"' in refusal(server, api="sglang")


def test_a_server_without_token_ids_is_refused() -> None:
    with CompletionServer(token_ids=False, token_names=False) as server:
        assert "token ids are missing" in refusal(server)
        assert "return_token_ids" in refusal(server)


def test_a_server_without_log_probs_is_refused() -> None:
    def bare(reply: Reply) -> Reply:
        reply.body["choices"][0]["logprobs"] = None
        return reply

    with CompletionServer(tamper=on("/completions", bare)) as server:
        assert "no `logprobs`" in refusal(server)


def test_more_log_probs_than_the_server_gives() -> None:
    with CompletionServer(max_logprobs=20) as server:
        words = refusal(server, top_k=64)
        assert "greater than max allowed: 20" in words
        assert "--max-logprobs" in words


def test_a_server_that_adds_a_token_to_the_prompt_is_refused() -> None:
    def longer(reply: Reply) -> Reply:
        reply.body["choices"][0]["prompt_token_ids"].insert(0, 1)
        return reply

    with CompletionServer(tamper=on("/completions", longer)) as server:
        assert "another prompt, of 2 tokens where 1 were sent" in refusal(server)


def test_logits_instead_of_log_probs_are_refused() -> None:
    def raised(reply: Reply) -> Reply:
        logprobs = reply.body["choices"][0]["logprobs"]
        logprobs["top_logprobs"] = [
            {name: value + 9 for name, value in row.items()} for row in logprobs["top_logprobs"]
        ]
        return reply

    with CompletionServer(tamper=on("/completions", raised)) as server:
        assert "natural logarithms" in refusal(server)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda reply: error(401, "no"), "no key was sent"),
        (lambda reply: error(404, "no"), "check engine.base_url"),
        (lambda reply: error(503, "loading"), "loading; try again when the server is ready"),
        (lambda reply: Reply(200, "<html></html>"), "a web page instead of JSON"),
        (lambda reply: replace(reply, cut=0), "no answer"),
        (lambda reply: replace(reply, hang=True), "no answer"),
    ],
)
def test_a_server_that_does_not_answer_is_down(
    change: Callable[[Reply], Reply], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with CompletionServer(tamper=on("/models", change)) as server, pytest.raises(EngineDownError, match=words):
        engine(server, timeout=0.5)


def test_nobody_listens() -> None:
    with CompletionServer() as server:
        server.kill()
        with pytest.raises(EngineDownError, match=r"start the server, or set engine\.base_url"):
            engine(server)
        server.revive()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8000/v1", "no http:// or https:// address"),
        ("ftp://host/v1", "no http:// or https:// address"),
        ("http:///v1", "no http:// or https:// address"),
        ("http://me:secret@host/v1", "neither a name"),
        ("http://host/v1?key=secret", "neither a name"),
    ],
)
def test_a_base_url_that_cannot_be(url: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        OpenAISettings(base_url=url)


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(("api", "flavour"), [("openai", "vllm"), ("sglang", "sglang")])
def test_a_base_url_with_or_without_a_last_slash(slash: str, api: str, flavour: str) -> None:
    with CompletionServer(flavour=flavour) as server:
        assert OpenAIEngine(Characters(), OpenAISettings(base_url=server.url + slash, api=api))
        assert {path for path, _ in server.requests} <= {"/v1/models", "/v1/completions", "/generate"}


def test_the_registry_builds_it_with_the_models_vocabulary() -> None:
    with CompletionServer() as server:
        settings = OpenAISettings(base_url=server.url)
        built = build(settings, ModelSettings(), Characters(), None, vocab_size=150)
        assert built._vocab_size == 150
        named = build(OpenAISettings(base_url=server.url, vocab_size=140), ModelSettings(), Characters(), None)
        assert named._vocab_size == 140
