"""The counted work against torch's own counter, and against what the packs must cost."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import arpo.learn.logprobs
from arpo.bench.executed import recorded
from arpo.bench.measure import FORMS, Bench
from arpo.bench.shapes import build_tree, parse_shape
from arpo.bench.work import Pass, Rates, dominant, rates

_SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _models() -> list[Any]:
    torch.manual_seed(0)
    return [
        Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=8, tie_word_embeddings=True)).eval(),
        Qwen2ForCausalLM(Qwen2Config(**_SIZES)).eval(),
        LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=False)).eval(),
    ]


def _bench(model: Any, shape: str, micro_tokens: int = 100_000) -> Bench:
    return Bench(model, build_tree(parse_shape(shape, roots=2, total=4), 50), micro_tokens)


def _counted(bench: Bench, form: Any) -> tuple[int, list[Pass]]:
    """(operations that torch saw in matrix products, passes). Its counter does not know the CPU's fused attention, and
    it sees the rotation's tables, a product of the head size's half and each position."""
    with recorded(bench.learners[form].head) as passes, FlopCounterMode(display=False) as counter:
        bench.gradient(form)
    tables = {k: n for k, n in counter.get_flop_counts()["Global"].items() if str(k) == "aten.bmm"}
    return counter.get_total_flops() - sum(tables.values()), passes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", _models(), ids=lambda model: type(model).__name__)
def test_linear_work_is_what_torch_counts(model: Any, form: Any) -> None:
    seen, passes = _counted(_bench(model, "9+30@1/2"), form)
    without_attention = replace(rates(model), pair=0.0)
    assert seen > 0
    assert without_attention.gradient(passes) == seen


def test_a_head_in_slices_is_counted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    (model, *_) = _models()
    whole, _ = _counted(_bench(model, "9+30@1/2"), "padded")
    monkeypatch.setattr(arpo.learn.logprobs, "CHUNK_LOGITS", 350)
    bench = _bench(model, "9+30@1/2")
    seen, passes = _counted(bench, "padded")
    assert {one.chunked for one in passes} == {True}
    assert seen == replace(rates(model), pair=0.0).gradient(passes) > whole


def test_attention_is_counted_on_the_pairs_of_the_mask() -> None:
    """A chain sees k <= q; a branch sees its stem whole and itself causally."""
    (model, *_) = _models()
    bench = _bench(model, "10+40@1/2")
    with recorded(bench.learners["tree"].head) as tree:
        bench.gradient("tree")
    with recorded(bench.learners["sequence"].head) as sequence:
        bench.gradient("sequence")
    paths = [len(path) - 1 for path in bench.tree.paths()]
    assert sum(one.pairs for one in sequence) == sum(n * (n + 1) // 2 for n in paths)
    # The branches' paths cost their pairs from the fork on, the prompt's are paid once.
    fork = 10 + 20
    stems = sum(n * (n + 1) // 2 - fork * (fork + 1) // 2 for n in paths)
    roots = 2 * (fork * (fork + 1) // 2 - 10 * 11 // 2)
    assert sum(one.pairs for one in tree) == stems + roots + 10 * 11 // 2


def test_padding_is_work() -> None:
    (model, *_) = _models()
    bench = _bench(model, "9+30@root")
    passes, peak = bench.observe("padded", memory=False)
    longest = max(len(path) for path in bench.tree.paths()) - 1
    assert peak is None
    assert passes == [Pass(4 * longest, 4 * longest * (longest + 1) // 2, passes[0].labels)]


def test_attention_rates_know_grouped_queries_and_head_size() -> None:
    grouped, wide = _models()[1:], _models()[0]
    assert {rates(model).pair for model in grouped} == {(2 + 2) * 4 * 4 * 2}
    assert rates(wide).pair == (2 + 2) * 8 * 4 * 2


def test_gradient_weighs_forward_and_backward() -> None:
    unit = Rates(token=100.0, label=10.0, pair=1.0)
    assert unit.gradient([Pass(2, 4, 3)]) == 600 + 90 + 14
    assert unit.gradient([Pass(2, 4, 3, chunked=True)] * 2) == 2 * (600 + 120 + 14)


def test_the_dominant_product() -> None:
    (model, *_) = _models()
    assert dominant(model, tokens=100, labels=1) == (100, 16, 24)
    assert dominant(model, tokens=100, labels=1000) == (1000, 16, 50)
