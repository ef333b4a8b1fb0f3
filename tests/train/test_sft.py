"""The cold start: batches, the clock, the optimiser pair, and a few real steps through TRL's trainer."""

import itertools
import random
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arpo.data.factbook.traces import make_traces
from arpo.data.pocket import build_pocket, train_tokenizer
from arpo.train.batches import IGNORED, Row, bucket, encode_pieces, repeat, stream
from arpo.train.muon import Muon, PairedOptimizer, make_optimizer, orthogonalise
from arpo.train.sft import Clock, fit, new_clock, save
from arpo.train.sft_settings import SftSettings

SETTINGS = SftSettings(steps=12, batch_tokens=600, lr=3e-3, muon_lr=0.03, warmup_steps=2, log_seconds=0.001)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer()


@pytest.fixture(scope="module")
def traces():
    return list(make_traces(60, 2, "varied"))


@pytest.fixture(scope="module")
def rows(tokenizer, traces):
    return encode_pieces(tokenizer, [trace.pieces for trace in traces])


def fresh(tokenizer):
    torch.manual_seed(0)
    return build_pocket(tokenizer)


def test_labels_are_what_the_policy_writes(tokenizer, traces, rows):
    for trace, row in zip(traces, rows, strict=True):
        assert len(row.labels) == len(row.input_ids)
        trained = [token for token in row.labels if token != IGNORED]
        assert tokenizer.decode(trained) == "".join(text for text, flag in trace.pieces if flag)
        assert all(label in (IGNORED, token) for token, label in zip(row.input_ids, row.labels, strict=True))


def test_buckets_hold_every_row_once_and_keep_the_limit(rows):
    batches = bucket(rows, 1000, random.Random(0))
    assert sorted(id(row) for batch in batches for row in batch) == sorted(map(id, rows))
    assert all(len(batch) == 1 or len(batch) * max(map(len, batch)) <= 1000 for batch in batches)
    assert max(len(batch) for batch in batches) > 3


def test_a_row_longer_than_the_limit_is_a_batch_of_its_own():
    long = Row([1] * 50, [1] * 50)
    assert bucket([long, Row([1], [1])], 10, random.Random(0)).count([long]) == 1


def test_processes_share_an_epoch_without_overlap(rows):
    count = len(bucket(rows, 600, random.Random(7)))
    shares = [list(itertools.islice(repeat(rows, 600, random.Random(7), rank, 2), count // 2)) for rank in range(2)]
    seen = [id(row) for share in shares for batch in share for row in batch]
    assert len(seen) == len(set(seen))
    assert len(seen) > 0.9 * len(rows)


def test_stream_draws_again_when_used_up(rows):
    drawn = itertools.count()
    batches = stream(lambda: [rows[next(drawn)]], 600, random.Random(0))
    assert [batch[0] for batch in itertools.islice(batches, 3)] == rows[:3]


def test_clock_warms_up_and_decays_by_steps():
    clock = Clock(steps=100, seconds=None, warmup=10, decay=0.4)
    factors = []
    for step in range(101):
        clock.advance(step)
        factors.append(clock.factor())
    assert factors[0] == pytest.approx(0.1)
    assert factors[10:60] == [1.0] * 50
    assert factors[80] == pytest.approx(0.52)
    assert factors[100] == pytest.approx(0.02)


def test_clock_ends_by_seconds_when_these_are_over_first():
    clock = Clock(steps=10**6, seconds=0.05, warmup=0, decay=0.5)
    clock.advance(1)
    assert clock.progress < 0.9
    time.sleep(0.06)
    clock.advance(2)
    assert clock.progress == 1.0
    assert clock.factor() == pytest.approx(0.02)


def test_an_endless_run_is_refused():
    with pytest.raises(ValueError, match="when to stop"):
        new_clock(SftSettings())


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (1, 8, 8)])
def test_orthogonalise_equalises_the_singular_values(shape):
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_muon_makes_the_steps_of_torchs(tokenizer):
    """The same update as torch.optim.Muon, which computes in bfloat16."""
    torch.manual_seed(0)
    start, grad = torch.randn(12, 30), torch.randn(12, 30)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    pairs = [(ours, Muon([ours], lr=0.1)), (theirs, torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0))]
    for _ in range(3):
        for parameter, optimizer in pairs:
            parameter.grad = grad.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=0.01)
    assert (ours - start).abs().max() > 0.05


def test_the_pair_divides_the_parameters_and_follows_a_schedule_after_loading(tokenizer):
    """Accelerate loads an optimiser's own state back into it; a learning rate set afterwards must still act."""
    model = fresh(tokenizer)
    pair = make_optimizer(model, lr=3e-3, muon_lr=0.03, betas=(0.9, 0.98), weight_decay=0.0)
    assert isinstance(pair, PairedOptimizer)
    counts = [sum(p.numel() for group in o.param_groups for p in group["params"]) for o in pair.optimizers]
    assert sum(counts) == model.num_parameters()
    assert counts[0] < counts[1]
    pair.load_state_dict(pair.state_dict())
    for group in pair.param_groups:
        group["lr"] = 0.0
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    pair.step()
    assert torch.equal(before, model.model.layers[0].mlp.up_proj.weight)


def test_the_loss_is_the_mean_over_trainable_tokens(tokenizer, rows):
    """The first logged loss against cross entropy by hand, padding and masks included."""
    batch = sorted(rows, key=len)[:6]
    model = fresh(tokenizer).eval()
    losses = []
    for row in batch:
        with torch.no_grad():
            logits = model(torch.tensor([row.input_ids])).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(row.labels)[1:], reduction="none"))
    trained = torch.cat(losses)[torch.cat([torch.tensor(row.labels)[1:] for row in batch]) != IGNORED]
    history = fit(fresh(tokenizer), tokenizer, iter([batch]), SETTINGS.model_copy(update={"steps": 1}), say=str)
    assert history[0]["loss"] == pytest.approx(float(trained.mean()), abs=1e-4)


def test_a_few_steps_on_traces_lower_the_loss_and_can_be_saved(tokenizer, rows, tmp_path):
    model, said = fresh(tokenizer), []
    history = fit(model, tokenizer, repeat(rows, 600, random.Random(0), 0, 1), SETTINGS, say=said.append)
    losses = [entry["loss"] for entry in history]
    assert len(losses) == len(said) == 12
    assert losses[-1] < losses[0] - 1.0
    save(model, tokenizer, tmp_path, torch.bfloat16)
    assert model.dtype == torch.float32
    assert model.config.dtype != torch.bfloat16
    assert (tmp_path / "model.safetensors").stat().st_size < 1_900_000
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.use_cache
    ids = torch.tensor([rows[0].input_ids])
    assert torch.allclose(loaded.float()(ids).logits, model(ids).logits, atol=0.1)
    assert AutoTokenizer.from_pretrained(tmp_path).init_kwargs["arpo_style"] == "compact"


def test_the_time_limit_stops_the_run(tokenizer, rows):
    settings = SETTINGS.model_copy(update={"steps": None, "max_seconds": 1.5, "log_seconds": 100.0})
    history = fit(fresh(tokenizer), tokenizer, repeat(rows, 600, random.Random(0), 0, 1), settings, say=str)
    assert len(history) == 1
    assert 1 < history[-1]["step"] < 500


@pytest.mark.slow
def test_two_processes_make_both_checkpoints(tmp_path, capfd):
    from arpo.train.cold_start import cold_start_pocket

    varied, clean = cold_start_pocket(tmp_path, seconds_clean=1.0, seconds_varied=1.0, processes=2)
    assert "step" in capfd.readouterr().out
    first, second = (AutoModelForCausalLM.from_pretrained(folder) for folder in (varied, clean))
    moved = (first.model.embed_tokens.weight - second.model.embed_tokens.weight).detach().abs().max()
    assert 0 < float(moved) < 1
