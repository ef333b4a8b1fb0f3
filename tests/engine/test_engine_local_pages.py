"""Pages: shared by branches, read once for all readers, moved, evicted; and what an engine promises on top of them."""

import asyncio

import numpy as np
import pytest
import torch
from engine_models import byte_tokenizer, tiny
from rollout_fakes import ToyDialect, ToyTool, decode, encode, toolbox

from arpo.engine import EngineStats, SampleParams
from arpo.engine.attention import attend
from arpo.engine.kv import PAGE
from arpo.engine.local import LocalEngine, make_engine
from arpo.engine.paging import Order, arranged, plan, reading, spans
from arpo.engine.settings import LocalSettings
from arpo.protocol.base import Call, ParseResult
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import BernoulliRule, EntropySettings, RolloutSettings
from arpo.task import ask
from arpo.tree import Finish

TOKENIZER = byte_tokenizer()
PROMPT = TOKENIZER("the capital of nowhere is " * 4)["input_ids"]
ENDLESS = (999,)


class ByteDialect(ToyDialect):
    """Bytes as tokens; some letters are a call, so that a random model calls often."""

    stop = tuple("abcdefgh")
    end_tokens = ENDLESS

    def parse(self, tokens, finish):
        return ParseResult(call=Call("search", {"text": chr(tokens[-1])})) if finish is Finish.CALL else ParseResult()

    def decode(self, tokens):
        return decode([token for token in tokens if token < 256])

    def result(self, text, **_):
        return encode("{" + text + "}")


def build(dtype=None, **options):
    model = tiny("qwen3")
    return LocalEngine(model if dtype is None else model.to(dtype), TOKENIZER, **options)


def plain(model, tokens, start):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, start - 1 : -1].double()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens[start:])[:, None])[:, 0].numpy()


def test_attention_over_shared_pages_is_a_softmax_over_each_rows_keys():
    rng = np.random.default_rng(0)
    keys, values = torch.randn(80, 2, PAGE, 8), torch.randn(80, 2, PAGE, 8)
    table = 10 + rng.permutation(70)[:40].reshape(8, 5)
    table[:, 0] = 3  # all rows share one page, half of them two
    table[:4, 1] = 4
    count = np.array([5, 4, 3, 3, 1, 5, 2, 4])
    table[4, 0] = 9  # a row of a single page, which it must have to itself
    last = rng.integers(0, PAGE, 8)
    q = torch.randn(8, 2, 3, 8)
    out = attend(q, keys, values, plan(table, count, last, PAGE, torch.device("cpu")), 0.3)
    for row in range(8):
        pages = torch.from_numpy(table[row, : count[row]])
        length = (count[row] - 1) * PAGE + last[row] + 1
        k, v = (x[pages].transpose(0, 1).flatten(1, 2)[:, :length] for x in (keys, values))
        weights = (q[row] @ k.transpose(-1, -2) * 0.3).softmax(-1)
        torch.testing.assert_close(out[row], weights @ v, atol=1e-6, rtol=1e-5)


def test_a_busy_page_among_quiet_ones_is_a_chunk_of_its_own_if_that_is_cheaper():
    readers = np.ones(1024, np.int64)
    readers[500] = 16
    ranges = spans(readers)
    assert [(r.stop - r.start > 100, r.readers) for r in ranges] == [(True, 1), (False, 16), (True, 1)]
    assert sum(r.cost for r in ranges) < 1024 * reading(np.array([16]))[0]


def test_moves_put_pages_with_like_readers_together_and_idle_ones_last():
    rng = np.random.default_rng(1)
    holders = rng.integers(0, 3, 200)
    readers = np.where(holders > 0, rng.integers(0, 5, 200), 0)[:180]
    source, target = arranged(readers, holders)
    assert sorted(source) == sorted(target)
    place = np.arange(200)
    place[source] = target
    moved_readers, moved_holders = np.zeros(200, int), np.zeros(200, int)
    moved_readers[place[:180]], moved_holders[place] = readers, holders
    busy = np.flatnonzero(moved_readers)
    assert busy.tolist() == list(range(len(busy)))
    assert (np.diff(np.ceil(np.log2(moved_readers[busy]))) <= 0).all()
    idle = np.flatnonzero((moved_holders > 0) & (moved_readers == 0))
    assert idle.tolist() == list(range(200 - len(idle), 200))


def test_moving_waits_until_the_waste_has_paid_for_it():
    readers = np.zeros(640, np.int64)
    readers[::20] = 1
    order, steps = Order(), 1
    while order.moves(readers, np.where(readers > 0, 1, 0)) is None:
        steps += 1
        assert steps < 100
    assert steps > 0
    assert order.moves(np.ones(32, np.int64), np.ones(32, np.int64)) is None


@pytest.mark.parametrize("fused", [True, False])
async def test_sixteen_trajectories_hold_the_prompt_once(fused):
    engine = build(fused=fused)
    jobs = [asyncio.ensure_future(engine.sample(PROMPT, SampleParams(60, end_tokens=ENDLESS), i)) for i in range(16)]
    while engine.stats.sampled_tokens < 16 * 40:
        await asyncio.sleep(0)
    shared = (len(PROMPT) - 1) // PAGE
    assert sorted(engine._store.holders)[-shared:] == [16] * shared
    # A page of its own for what each began in the middle of, and one for what it has filled since.
    assert (engine._store.holders > 0).sum() <= shared + 16 * (2 + 40 // PAGE)
    model = tiny("qwen3")
    for segment in await asyncio.gather(*jobs):
        tokens = [*PROMPT, *segment.tokens.tolist()]
        np.testing.assert_allclose(segment.logprobs, plain(model, tokens, len(PROMPT)), atol=1e-4)


async def test_pages_may_move_at_every_step(monkeypatch):
    rng = np.random.default_rng(2)

    def shuffled(self, readers, holders):
        return np.arange(len(holders)), rng.permutation(len(holders))

    monkeypatch.setattr(Order, "moves", shuffled)
    engine, model = build(), tiny("qwen3")
    for segment in await asyncio.gather(
        *(engine.sample(PROMPT, SampleParams(40, end_tokens=ENDLESS), i) for i in range(5))
    ):
        tokens = [*PROMPT, *segment.tokens.tolist()]
        np.testing.assert_allclose(segment.logprobs, plain(model, tokens, len(PROMPT)), atol=1e-4)


async def test_every_page_is_free_once_all_is_forgotten():
    engine = build(max_cached_tokens=10 * PAGE)
    for start in (0, 7, 50):
        await asyncio.gather(
            *(engine.sample(PROMPT[start:], SampleParams(50, end_tokens=ENDLESS), i) for i in range(6))
        )
    held = sum(engine._slots.held)
    assert held == engine._store.holders.sum() > 0
    await engine.publish(engine._model, 1)
    assert engine._store.free == 10
    assert not engine._store.holders.any()


async def test_a_group_with_branches_computes_hardly_more_than_its_unique_tokens():
    engine = build(max_batch=32)
    rule = BernoulliRule.model_validate({"base_probability": 0.7, "entropy_weight": 0.0, "at": "after_window"})
    tree = await rollout(
        ask("why is the sky blue?", "1", id="a"),
        Agent(engine, ByteDialect(), toolbox(ToyTool("search", delay=lambda context: (context.seed % 3) / 1000)), 258),
        settings=RolloutSettings(total=16, initial=8, max_tokens=100, max_calls=4, branching=rule),
        entropy=EntropySettings(window=3),
        seed_parts=(1,),
    )
    assert sum(decision.opened for decision in tree.decisions) >= 4
    unique = sum(len(segment) for segment in tree.segments)
    assert 0.8 < engine.stats.computed_tokens / unique <= 1.05


def random_jobs(count):
    rng = np.random.default_rng(3)
    return [(PROMPT[: rng.integers(1, len(PROMPT))], int(rng.integers(5, 60)), index) for index in range(count)]


async def answers(engine, jobs):
    """By seed, whatever the order."""
    tasks = {s: engine.sample(p, SampleParams(n, end_tokens=ENDLESS), s) for p, n, s in jobs}
    return dict(zip(tasks, [s.tokens.tolist() for s in await asyncio.gather(*tasks.values())], strict=True))


async def test_in_float64_company_and_order_change_no_token():
    jobs = random_jobs(24)
    together = await answers(build(torch.float64), jobs)
    reversed_ = await answers(build(torch.float64, max_batch=5, prefill_tokens=16), jobs[::-1])
    assert together == reversed_
    first = build(torch.float64)
    assert [(await answers(first, [job]))[job[2]] for job in jobs[:4]] == [together[job[2]] for job in jobs[:4]]
    assert first._store.keys[0].dtype is torch.float64


async def test_without_entropy_zeros_and_the_same_tokens():
    exact, none = (make_engine(tiny("qwen3"), TOKENIZER, LocalSettings(entropy=kind)) for kind in ("exact", "none"))
    assert (exact.capabilities.entropy, none.capabilities.entropy) == ("exact", "none")
    a, b = [await engine.sample(PROMPT, SampleParams(20, end_tokens=ENDLESS), 1) for engine in (exact, none)]
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.entropies.min() > 0
    assert b.entropies.tolist() == [0.0] * 20


async def test_neither_prefill_nor_decoding_starves_the_other():
    engine = build(prefill_tokens=8)
    running = [
        asyncio.ensure_future(engine.sample(PROMPT[:3], SampleParams(200, end_tokens=ENDLESS), i)) for i in (0, 1)
    ]
    while engine.stats.sampled_tokens < 4:
        await asyncio.sleep(0)
    engine.stats = EngineStats()
    long = asyncio.ensure_future(engine.sample(PROMPT[:0:-1], SampleParams(1), 2))
    await long
    # One piece of the prefill and one token of every running row per step; a step to be let in, and one to hear of it.
    assert -(-(len(PROMPT) - 2) // 8) <= engine.stats.steps <= -(-(len(PROMPT) - 2) // 8) + 2
    assert engine.stats.sampled_tokens == 2 * engine.stats.steps + 1
    for task in running:
        task.cancel()


async def test_close_leaves_no_task_and_no_caller_behind():
    engine = build(max_batch=1)
    before = asyncio.all_tasks()
    jobs = [asyncio.ensure_future(engine.sample(PROMPT, SampleParams(100, end_tokens=ENDLESS), i)) for i in range(3)]
    while engine.stats.sampled_tokens < 3:
        await asyncio.sleep(0)
    await engine.close()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert all(job.cancelled() for job in jobs)
    assert asyncio.all_tasks() == before
    assert not engine._store.holders.any()
