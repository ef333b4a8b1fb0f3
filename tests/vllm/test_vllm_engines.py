"""Both vLLM engines against the local model: the same numbers for the same tokens, the same segments, new weights."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from vllm_rollouts import agent_of, factbook_tasks, rollout_settings

from arpo.engine.base import SampleParams
from arpo.learn.settings import GrpoLoss, OptimSettings
from arpo.learn.update import Learner
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import EntropySettings
from arpo.tree import Finish, Segment

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1800)]

TEXTS = (
    "The capital of France is Paris. The capital of Italy is",
    "def add(a, b):\n    return",
    "Once upon a time there was a small village by the sea, and",
    "Water boils at 100 degrees Celsius. Water freezes at",
    "The three largest countries of the world by area are",
    "A poem about the winter:\n",
    "The opposite of hot is cold. The opposite of",
    "<search> population of Kenya </sea",
)


def exact(model: Any, prefix: Sequence[int], tokens: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """(log-probs, entropies) of `tokens` behind `prefix` by one plain forward pass in float64 from float32 logits."""
    ids = torch.tensor([[*prefix, *tokens.tolist()]])
    with torch.inference_mode():
        logits_TV = model(ids).logits[0, len(prefix) - 1 : -1].double() / temperature
    logp_TV = torch.log_softmax(logits_TV, -1)
    logp_T = logp_TV.gather(-1, torch.from_numpy(tokens).long()[:, None])[:, 0]
    return logp_T.numpy(), torch.special.entr(logp_TV.exp()).sum(-1).numpy()


async def sampled(engine: Any, prefixes: Sequence[list[int]], params: SampleParams, seed: int = 0) -> list[Segment]:
    return await asyncio.gather(*(engine.sample(p, params, seed + i) for i, p in enumerate(prefixes)))


def kl(sampler: np.ndarray, trainer: np.ndarray) -> float:
    """Mean of rho - ln rho - 1 with rho = trainer / sampler: an estimate of KL(sampler || trainer) per token."""
    gap = trainer.astype(np.float64) - sampler
    return float(np.mean(np.exp(gap) - gap - 1))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_numbers_are_those_of_the_local_model(
    engine: Any, policy: tuple[Any, Any], figures: dict[str, str], temperature: float
) -> None:
    model, tokenizer = policy
    prefixes = [tokenizer.encode(text) for text in TEXTS]
    segments = await sampled(engine, prefixes, SampleParams(40, temperature=temperature))
    want = [exact(model, p, s.tokens, temperature) for p, s in zip(prefixes, segments, strict=True)]
    logp, entropy = (np.concatenate(part) for part in zip(*want, strict=True))
    got = np.concatenate([s.logprobs for s in segments])
    middle = np.concatenate([s.entropies for s in segments])
    assert np.abs(got - logp).max() < 2e-3
    where = f"{engine.kind}, temperature {temperature:g}, {len(got)} tokens"
    figures[f"log-prob of the sampled token, vLLM - local model: mean abs, max ({where})"] = (
        f"{np.abs(got - logp).mean():.1e}, {np.abs(got - logp).max():.1e} nats"
    )
    if engine.capabilities.entropy == "exact":
        assert all(len(s.slacks) == 0 for s in segments)
        assert np.abs(middle - entropy).max() < 5e-3
        figures[f"exact entropy, vLLM - local model: max ({where})"] = f"{np.abs(middle - entropy).max():.1e} nats"
        return
    slack = np.concatenate([s.slacks for s in segments])
    inside = np.abs(middle - entropy) <= slack + 2e-3
    assert inside.all()
    assert slack.mean() < 0.25 * np.log(model.config.vocab_size)
    figures[f"entropy brackets (top {engine.capabilities.top_k}) that contain the local model's value ({where})"] = (
        f"{inside.sum()} of {len(inside)}; mean entropy {entropy.mean():.2f}, mean half-width {slack.mean():.2f} nats"
    )


async def test_log_probs_are_of_the_whole_distribution_under_top_p(engine_inside: Any, policy: tuple[Any, Any]) -> None:
    model, tokenizer = policy
    prefixes = [tokenizer.encode(text) for text in TEXTS[:4]]
    cut = SampleParams(24, temperature=0.9, top_p=0.3)
    for prefix, segment in zip(prefixes, await sampled(engine_inside, prefixes, cut), strict=True):
        logp, entropy = exact(model, prefix, segment.tokens, 0.9)
        assert np.abs(segment.logprobs - logp).max() < 2e-3
        assert np.abs(segment.entropies - entropy).max() < 5e-3


async def test_a_seed_names_a_segment(engine: Any, policy: tuple[Any, Any]) -> None:
    prefix = policy[1].encode(TEXTS[2])
    first, again, other = [await engine.sample(prefix, SampleParams(24), seed) for seed in (5, 5, 6)]
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.tokens.tolist() != other.tokens.tolist()


async def test_greedy_is_the_most_likely_token_at_temperature_1(engine: Any, policy: tuple[Any, Any]) -> None:
    model, tokenizer = policy
    prefix = tokenizer.encode(TEXTS[0])
    segment = await engine.sample(prefix, SampleParams(8, temperature=0.0), 0)
    with torch.inference_mode():
        best = model(torch.tensor([[*prefix, *segment.tokens.tolist()]])).logits[0, len(prefix) - 1 : -1].argmax(-1)
    assert segment.tokens.tolist() == best.tolist()
    assert np.abs(segment.logprobs - exact(model, prefix, segment.tokens, 1.0)[0]).max() < 2e-3


async def test_ends_are_the_contracts(engine: Any, policy: tuple[Any, Any]) -> None:
    """A stop string over several tokens ends the segment, also where a window has cut it in two."""
    tokenizer = policy[1]
    prefix = tokenizer.encode(TEXTS[0])
    free = await engine.sample(prefix, SampleParams(16, temperature=0.0), 0)
    assert free.finish is Finish.LENGTH
    tokens = free.tokens.tolist()
    stop = (tokenizer.decode(tokens[4:8]),)
    whole = await engine.sample(prefix, SampleParams(16, temperature=0.0, stop=stop), 0)
    assert (whole.tokens.tolist(), whole.finish) == (tokens[:8], Finish.CALL)
    rest = await engine.sample(prefix + tokens[:6], SampleParams(16, temperature=0.0, stop=stop), 0)
    assert (rest.tokens.tolist(), rest.finish) == (tokens[6:8], Finish.CALL)
    ended = await engine.sample(prefix, SampleParams(16, temperature=0.0, end_tokens=(tokens[3],)), 0)
    first = tokens.index(tokens[3])
    assert (ended.tokens.tolist(), ended.finish) == (tokens[: first + 1], Finish.STOP)


async def test_a_cancelled_sample_is_aborted(engine_inside: Any, policy: tuple[Any, Any]) -> None:
    task = asyncio.create_task(engine_inside.sample(policy[1].encode(TEXTS[2]), SampleParams(900), 0))
    await asyncio.sleep(1.5)
    assert engine_inside._llm.get_num_unfinished_requests() == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine_inside._llm.get_num_unfinished_requests() == 0


async def test_a_rollout_on_the_factbook(engine: Any, policy: tuple[Any, Any], figures: dict[str, str]) -> None:
    """Whole trees with calls and branches; the trainer's log-probs of their tokens are the sampler's."""
    model, tokenizer = policy
    agent = agent_of(engine, tokenizer, model.config.vocab_size)
    settings = rollout_settings()
    before = replace(engine.stats)
    trees = await rollout_many(
        factbook_tasks(3), agent, settings=settings, entropy=EntropySettings(window=8), seed_parts=(0, "vllm")
    )
    for tree in trees:
        tree.validate(settings.total)
        assert {s.version for s in tree.segments if s.source == "policy"} == {engine.version}
    calls = sum(tree.tool_calls for tree in trees)
    branches = sum(decision.opened for tree in trees for decision in tree.decisions)
    assert calls > 0
    assert branches > 0
    learner = Learner(model, GrpoLoss(), OptimSettings(), total_updates=1, temperature=settings.temperature)
    gaps = []
    for tree, own in zip(trees, learner.logprobs(trees), strict=True):
        sampler = np.concatenate([_dense(s) for s in tree.segments])
        places = np.concatenate([np.full(len(s.tokens), s.source == "policy") for s in tree.segments])
        gaps.append((sampler[places], own[places]))
    sampler, trainer = (np.concatenate(part) for part in zip(*gaps, strict=True))
    assert np.abs(sampler - trainer).max() < 5e-3
    assert kl(sampler, trainer) < 1e-5
    reused = engine.stats.reused_tokens - before.reused_tokens
    prefix = engine.stats.prefix_tokens - before.prefix_tokens
    assert reused > 0
    figures[f"ARPO rollout on factbook, {engine.kind}"] = (
        f"{len(trees)} prompts x {settings.total} trajectories, {calls} tool calls, {branches} branches, "
        f"{100 * reused / prefix:.0f} % of prefix tokens from the prefix cache"
    )
    figures[f"KL(sampler, trainer) per token on these trees, {engine.kind}"] = (
        f"{kl(sampler, trainer):.1e} nats ({len(sampler)} tokens; max abs difference "
        f"{np.abs(sampler - trainer).max():.1e})"
    )


def _dense(segment: Segment) -> np.ndarray:
    return segment.logprobs if len(segment.logprobs) else np.zeros(len(segment.tokens), np.float32)


async def test_published_weights_are_sampled_from(
    engine: Any, policy: tuple[Any, Any], figures: dict[str, str]
) -> None:
    """A perturbed model is published while its predecessor's prefixes are in the cache; then the old one again."""
    model, tokenizer = policy
    changed = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.1 * parameter.abs().mean())
    prefixes = [tokenizer.encode(text) for text in TEXTS]
    clock = asyncio.get_running_loop().time
    for version, now, before in ((7, changed, model), (8, model, changed)):
        await sampled(engine, prefixes, SampleParams(2))
        begin = clock()
        await engine.publish(now, version)
        seconds = clock() - begin
        segments = await sampled(engine, prefixes, SampleParams(24), seed=version)
        assert {s.version for s in segments} == {version} == {engine.version}
        got = np.concatenate([s.logprobs for s in segments])
        new, old = (
            np.concatenate([exact(m, p, s.tokens, 1.0)[0] for p, s in zip(prefixes, segments, strict=True)])
            for m in (now, before)
        )
        assert np.abs(got - new).max() < 2e-3
        assert np.abs(got - old).mean() > 0.05
        if version == 7:
            figures[f"published weights, {engine.kind}: log-probs against the new and the old model"] = (
                f"max abs {np.abs(got - new).max():.1e} and mean abs {np.abs(got - old).mean():.2f} nats; "
                f"{seconds:.1f} s for 538 MB"
            )


async def test_a_publication_waits_for_running_segments(engine: Any, policy: tuple[Any, Any]) -> None:
    model, tokenizer = policy
    running = asyncio.create_task(engine.sample(tokenizer.encode(TEXTS[2]), SampleParams(48), 1))
    await asyncio.sleep(0.5)
    version = engine.version
    publication = asyncio.create_task(engine.publish(model, version + 1))
    await asyncio.sleep(0)
    late = asyncio.create_task(engine.sample(tokenizer.encode(TEXTS[1]), SampleParams(4), 1))
    segments = await asyncio.gather(running, late, publication)
    assert [s.version for s in segments[:2]] == [version, version + 1]
