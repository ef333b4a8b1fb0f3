"""The local engine against the plain, uncached forward pass of the same model."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_models import byte_tokenizer, tiny

from arpo.engine import EngineStats, SampleParams
from arpo.engine.fused import FusedForward, can_fuse
from arpo.engine.kv import PAGE
from arpo.engine.local import LocalEngine, make_engine
from arpo.engine.settings import LocalSettings
from arpo.engine.stock import StockForward
from arpo.errors import ArpoError
from arpo.tree import Finish

TOKENIZER = byte_tokenizer()
EOS = 256


def encode(text):
    return TOKENIZER(text)["input_ids"]


def build(kind="qwen3", **options):
    return LocalEngine(tiny(kind), TOKENIZER, **options)


def plain(model, tokens, start, temperature=1.0):
    """Log-probs and entropies of tokens[start:] by one uncached forward pass in float64."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, start - 1 : -1].double()
    logp = torch.log_softmax(logits / (temperature or 1.0), -1)
    picked = logp.gather(-1, torch.tensor(tokens[start:])[:, None])[:, 0]
    return picked.numpy(), -(logp.exp() * logp).sum(-1).numpy()


def check(model, prefix, segment, temperature=1.0):
    logp, entropy = plain(model, [*prefix, *segment.tokens.tolist()], len(prefix), temperature)
    np.testing.assert_allclose(segment.logprobs, logp, atol=1e-4)
    np.testing.assert_allclose(segment.entropies, entropy, atol=1e-4)


PREFIXES = [encode(text) for text in ("a", "what is two plus two?", "the capital of nowhere is " * 3)]


@pytest.mark.parametrize(
    ("kind", "options", "changes"),
    [
        ("qwen3", {"fused": True}, {}),
        ("qwen3", {"fused": False}, {}),
        ("llama", {"fused": True}, {}),
        ("llama", {"fused": False}, {"attn_implementation": "eager"}),
        ("qwen2", {"fused": True}, {}),
        ("gpt2", {}, {}),
        ("gemma", {}, {}),
    ],
)
async def test_logprobs_and_entropies_equal_the_plain_forward(kind, options, changes):
    model = tiny(kind, **changes)
    engine = LocalEngine(model, TOKENIZER, **options)
    params = [SampleParams(24, temperature=t) for t in (1.0, 0.7, 1.6)]
    jobs = [engine.sample(prefix, p, seed) for seed, (prefix, p) in enumerate(zip(PREFIXES, params, strict=True))]
    for prefix, p, segment in zip(PREFIXES, params, await asyncio.gather(*jobs), strict=True):
        assert segment.finish in (Finish.LENGTH, Finish.STOP)
        check(model, prefix, segment, p.temperature)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
async def test_fused_logits_equal_the_module(kind):
    changes = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}} if kind == "llama" else {}
    model = tiny(kind, **changes)
    assert can_fuse(model)
    seen = {}
    for name, fused in (("fused", True), ("stock", False)):
        engine = LocalEngine(model, TOKENIZER, fused=fused)
        inner = engine._forward.logits
        engine._forward.logits = lambda *args, inner=inner, name=name: (
            seen.setdefault(name, []).append(inner(*args)) or seen[name][-1]
        )
        await asyncio.gather(*(engine.sample(prefix, SampleParams(6, temperature=0), 0) for prefix in PREFIXES))
        assert isinstance(engine._forward, FusedForward if fused else StockForward)
    assert len(seen["fused"]) == len(seen["stock"]) > 5
    for fused, stock in zip(seen["fused"], seen["stock"], strict=True):
        torch.testing.assert_close(fused, stock, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
async def test_joint_batch_equals_solo_runs_token_for_token(fused):
    prefixes = [*PREFIXES, PREFIXES[1], [*PREFIXES[1], *encode(" and three")]]
    params = SampleParams(30, top_p=0.9)
    together = build(fused=fused)
    joint = await asyncio.gather(*(together.sample(p, params, seed) for seed, p in enumerate(prefixes)))
    for seed, prefix in enumerate(prefixes):
        solo = await build(fused=fused).sample(prefix, params, seed)
        assert solo.tokens.tolist() == joint[seed].tokens.tolist()
        np.testing.assert_allclose(solo.logprobs, joint[seed].logprobs, atol=1e-5)
    assert joint[1].tokens.tolist() != joint[3].tokens.tolist()


async def test_continuation_after_a_result_reuses_the_prefix_and_equals_fresh_computation():
    engine = build()
    prefix, result = PREFIXES[1], encode("<result> four </result>")
    first = await engine.sample(prefix, SampleParams(12), 1)
    longer = [*prefix, *first.tokens.tolist(), *result]
    engine.stats = EngineStats()
    second = await engine.sample(longer, SampleParams(12), 2)
    # All but the last sampled token had been computed.
    assert engine.stats.reused_tokens == len(prefix) + len(first) - 1
    assert engine.stats.prefilled_tokens == len(result) + 1
    check(tiny("qwen3"), longer, second)
    fresh = await build(prefix_reuse=False).sample(longer, SampleParams(12), 2)
    assert fresh.tokens.tolist() == second.tokens.tolist()


async def test_without_reuse_everything_is_computed_again():
    engine = build(prefix_reuse=False)
    for seed in (1, 2):
        await engine.sample(PREFIXES[2], SampleParams(4), seed)
    assert engine.stats.reused_tokens == 0
    assert engine.stats.prefilled_tokens == engine.stats.prefix_tokens == 2 * len(PREFIXES[2])
    assert not engine.capabilities.prefix_reuse


async def test_rollouts_of_one_prompt_prefill_it_once_and_forks_are_exact():
    engine = build()
    prompt = PREFIXES[2]
    segments = await asyncio.gather(*(engine.sample(prompt, SampleParams(10), seed) for seed in range(6)))
    assert engine.stats.prefilled_tokens == len(prompt) + 5
    assert engine.stats.reused_tokens == 5 * (len(prompt) - 1)
    assert len({tuple(s.tokens.tolist()) for s in segments}) == 6
    trunk = [*prompt, *segments[0].tokens.tolist()]
    forks = [trunk, trunk, trunk[:-4], [*trunk[:-2], *encode("xyz")]]
    for fork, segment in zip(
        forks,
        await asyncio.gather(*(engine.sample(f, SampleParams(10), 9 + i) for i, f in enumerate(forks))),
        strict=True,
    ):
        check(tiny("qwen3"), fork, segment)


async def test_a_running_sequence_can_be_forked():
    engine = build()
    long = asyncio.ensure_future(engine.sample(PREFIXES[2], SampleParams(100, end_tokens=(999,)), 0))
    while engine.stats.sampled_tokens < 20:
        await asyncio.sleep(0)
    forked = await engine.sample(PREFIXES[2], SampleParams(10), 3)
    assert not long.done()
    assert engine.stats.reused_tokens == len(PREFIXES[2]) - 1
    check(tiny("qwen3"), PREFIXES[2], forked)
    check(tiny("qwen3"), PREFIXES[2], await long)


async def test_eviction_and_preemption_recompute_instead_of_failing():
    """Room for two long sequences, five asked for; each must come out as with all the room in the world."""
    params = SampleParams(100, end_tokens=(999,))
    prefixes = [encode(f"question number {i} ") for i in range(5)]
    tight = build(max_cached_tokens=128)
    assert tight.capabilities.max_context == 128
    segments = await asyncio.gather(*(tight.sample(p, params, i) for i, p in enumerate(prefixes)))
    wide = await asyncio.gather(*(build().sample(p, params, i) for i, p in enumerate(prefixes)))
    for a, b in zip(segments, wide, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert len(a) == 100
    assert tight._store.pages * PAGE <= 128
    assert tight.stats.prefilled_tokens > tight.stats.prefix_tokens - tight.stats.reused_tokens
    # A parked prefix that had to go is computed again.
    again = [*prefixes[0], *segments[0].tokens.tolist()]
    check(tiny("qwen3"), again, await tight.sample(again, SampleParams(10), 7))


async def test_many_rows_come_and_go():
    """Compaction, growth and a batch limit under churn, in two arrival patterns with the same answers."""

    async def trajectory(engine, index):
        tokens, out = encode(f"row {index} " * (1 + index % 5)), []
        for turn in range(3):
            segment = await engine.sample(tokens, SampleParams(3 + (index * 7 + turn) % 23), index * 10 + turn)
            out += segment.tokens.tolist()
            tokens = [*tokens, *segment.tokens.tolist(), *encode(f"<r{turn}>")]
            await asyncio.sleep(0.0005 * (index % 3) * engine.shuffle)
        return out

    answers = []
    for shuffle, max_batch in ((0, 64), (1, 6)):
        engine = build(max_batch=max_batch)
        engine.shuffle = shuffle
        answers.append(await asyncio.gather(*(trajectory(engine, i) for i in range(24))))
    assert answers[0] == answers[1]


async def test_cancelled_call_frees_its_row():
    engine = build(max_batch=1)
    endless = SampleParams(200, end_tokens=(999,))
    running = asyncio.ensure_future(engine.sample(PREFIXES[0], endless, 0))
    waiting = asyncio.ensure_future(engine.sample(PREFIXES[1], endless, 0))
    third = asyncio.ensure_future(engine.sample(PREFIXES[1], SampleParams(5), 4))
    while engine.stats.sampled_tokens < 5:
        await asyncio.sleep(0)
    running.cancel()
    waiting.cancel()
    check(tiny("qwen3"), PREFIXES[1], await third)
    assert running.cancelled()
    assert waiting.cancelled()
    assert engine.stats.sampled_tokens < 20
    assert not engine._batcher.running
    assert not engine._batcher.waiting


async def test_stop_string_of_one_token_and_split_over_tokens():
    model = tiny("qwen3")
    # A model that spells: every token is followed by its successor in the cycle.
    cycle = [*(encode(letter)[0] for letter in "xy</search>"), 257, EOS]
    _teach(model, cycle)
    engine = LocalEngine(model, TOKENIZER)
    greedy = SampleParams(40, temperature=0, stop=("</python>", "</search>"))
    split = await engine.sample(encode("x"), greedy, 0)
    assert (TOKENIZER.decode(split.tokens), split.finish) == ("y</search>", Finish.CALL)
    single = await engine.sample([*encode("x"), *split.tokens.tolist()], greedy, 0)
    assert (single.tokens.tolist(), single.finish) == ([257], Finish.CALL)
    over = await engine.sample([*encode("x"), *split.tokens.tolist(), 257], greedy, 0)
    assert (over.tokens.tolist(), over.finish) == ([EOS], Finish.STOP)
    cut = await engine.sample(encode("x"), SampleParams(5, temperature=0, stop=greedy.stop), 0)
    assert (TOKENIZER.decode(cut.tokens), cut.finish) == ("y</se", Finish.LENGTH)
    rest = await engine.sample([*encode("x"), *cut.tokens.tolist()], greedy, 0)
    assert (TOKENIZER.decode(rest.tokens), rest.finish) == ("arch>", Finish.CALL)


def _teach(model, cycle):
    """Make `model` continue each token of `cycle` by the next, whatever came before."""
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for here, after in pairwise(cycle):
            model.lm_head.weight[after] += model.model.embed_tokens.weight[here]


async def test_greedy_is_the_argmax_and_reports_temperature_one():
    model = tiny("llama")
    segment = await LocalEngine(model, TOKENIZER).sample(PREFIXES[1], SampleParams(15, temperature=0), 3)
    tokens = list(PREFIXES[1])
    for token in segment.tokens.tolist():
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax())
        tokens.append(token)
    check(model, PREFIXES[1], segment, 0)


async def test_context_overflow_is_length_and_a_prompt_beyond_it_an_error():
    engine = build(max_context=40)
    segment = await engine.sample(encode("x" * 30), SampleParams(100, end_tokens=(999,)), 0)
    assert (len(segment), segment.finish) == (10, Finish.LENGTH)
    with pytest.raises(ArpoError, match="prefix of 40 tokens leaves no room in the context of 40"):
        await engine.sample(encode("x" * 40), SampleParams(1), 0)


async def test_bad_prefixes_are_refused_and_harm_nobody():
    engine = build()
    good = asyncio.ensure_future(engine.sample(PREFIXES[1], SampleParams(10), 0))
    with pytest.raises(ArpoError, match="empty prefix"):
        await engine.sample([], SampleParams(1), 0)
    with pytest.raises(ArpoError, match="another tokenizer"):
        await engine.sample([3, 258], SampleParams(1), 0)
    with pytest.raises(ValueError, match="max_tokens"):
        await engine.sample([3], SampleParams(0), 0)
    check(tiny("qwen3"), PREFIXES[1], await good)


async def test_publish_of_the_shared_module_drops_the_caches():
    model = tiny("qwen3")
    engine = LocalEngine(model, TOKENIZER)
    old = await engine.sample(PREFIXES[1], SampleParams(10), 0)
    assert (old.version, engine.version) == (0, 0)
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    await engine.publish(model, 5)
    new = await engine.sample(PREFIXES[1], SampleParams(10), 0)
    assert (new.version, engine.version) == (5, 5)
    assert model.training
    check(model, PREFIXES[1], new)
    assert not np.allclose(old.logprobs[:1], new.logprobs[:1])


@pytest.mark.parametrize("as_state", [True, False])
async def test_publish_waits_for_running_segments_and_holds_back_new_ones(as_state):
    model, other = tiny("qwen3"), tiny("qwen3")
    with torch.no_grad():
        other.model.embed_tokens.weight.mul_(1.5)
    engine = LocalEngine(model, TOKENIZER)
    running = asyncio.ensure_future(engine.sample(PREFIXES[1], SampleParams(30, end_tokens=(999,)), 0))
    while engine.stats.sampled_tokens < 3:
        await asyncio.sleep(0)
    publishing = asyncio.ensure_future(engine.publish(other.state_dict() if as_state else other, 2))
    await asyncio.sleep(0)
    late = await engine.sample(PREFIXES[1], SampleParams(10), 0)
    await publishing
    assert (await running).version == 0
    check(tiny("qwen3"), PREFIXES[1], running.result())
    assert late.version == 2
    check(other, PREFIXES[1], late)


async def test_weights_that_do_not_fit_change_nothing():
    engine = build()
    state = tiny("qwen3").state_dict()
    state["model.norm.weight"] = torch.zeros(7)
    with pytest.raises(ArpoError, match=r"1 tensors differ, 'model\.norm\.weight' is \(7,\) there and \(48,\) here"):
        await engine.publish(state, 1)
    assert engine.version == 0
    check(tiny("qwen3"), PREFIXES[1], await engine.sample(PREFIXES[1], SampleParams(5), 0))


async def test_save_and_load(tmp_path):
    engine = build()
    expected = await engine.sample(PREFIXES[1], SampleParams(10), 0)
    engine.save(tmp_path)
    with torch.no_grad():
        engine._model.model.norm.weight.mul_(3)
    await engine.publish(engine._model, 1)
    engine.load(tmp_path)
    again = await engine.sample(PREFIXES[1], SampleParams(10), 0)
    assert again.version == 2
    assert again.tokens.tolist() == expected.tokens.tolist()


@pytest.mark.parametrize("fail_at", ["extend", "logits"])
async def test_an_exception_in_the_step_reaches_every_caller(fail_at):
    engine = build(max_batch=2)

    def broken(*args):
        raise RuntimeError("device lost")

    working = getattr(engine._forward, fail_at)
    setattr(engine._forward, fail_at, broken)
    jobs = [engine.sample(p, SampleParams(5), 0) for p in PREFIXES[1:] * 2]
    answers = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 5)
    assert [str(a) for a in answers] == ["device lost"] * 4
    setattr(engine._forward, fail_at, working)
    check(tiny("qwen3"), PREFIXES[1], await engine.sample(PREFIXES[1], SampleParams(5), 0))


async def test_broken_weights_are_an_error_not_a_token():
    engine = build()
    with torch.no_grad():
        engine._model.model.norm.weight.fill_(float("nan"))
    await engine.publish(engine._model, 1)
    with pytest.raises(FloatingPointError, match="NaN"):
        await engine.sample(PREFIXES[0], SampleParams(5), 0)


def test_one_engine_serves_several_event_loops():
    engine = build()
    first = asyncio.run(engine.sample(PREFIXES[1], SampleParams(5), 0))
    second = asyncio.run(engine.sample(PREFIXES[1], SampleParams(5), 0))
    assert first.tokens.tolist() == second.tokens.tolist()
    assert engine.stats.reused_tokens == len(PREFIXES[1]) - 1


def test_models_that_cannot_be_cached_this_way_are_refused():
    sliding = tiny("qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=1)
    with pytest.raises(ArpoError, match=r"last 32 tokens only.*max_context = 32"):
        LocalEngine(sliding, TOKENIZER)
    LocalEngine(sliding, TOKENIZER, max_context=32, fused=False)
    with pytest.raises(ArpoError, match="fused"):
        LocalEngine(tiny("gpt2"), TOKENIZER, fused=True)
    with pytest.raises(ArpoError, match="linear_attention"):
        LocalEngine(_with_linear_layer(tiny("qwen3")), TOKENIZER)


def _with_linear_layer(model):
    model.config.layer_types = ["full_attention", "linear_attention"]
    return model


async def test_settings_build_the_engine():
    engine = make_engine(tiny("qwen3"), TOKENIZER, LocalSettings(max_batch=3, max_context=50, prefill_tokens=8))
    assert (engine.capabilities.entropy, engine.capabilities.weight_update) == ("exact", True)
    assert engine.capabilities.max_context == 50
    # A prompt longer than one prefill pass is computed in pieces.
    prompt = encode("y" * 45)
    check(tiny("qwen3"), prompt, await engine.sample(prompt, SampleParams(5, end_tokens=(999,)), 0))
    assert engine.stats.steps >= 6 + 5 - 1
