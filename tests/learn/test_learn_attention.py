"""The forms of tree attention against each other and against plain rows; what cannot hold to a tree is refused."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import tiny as tiny_of
from forests import VOCAB, comparable, random_tree, sampled_by
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import (
    AttentionInterface,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)

from arpo.credit import assign
from arpo.credit.settings import credit_settings
from arpo.errors import ConfigError
from arpo.learn import attention
from arpo.learn.attention import FLEX_BLOCK, Layout, best_form, block_mask, tree_attention
from arpo.learn.layout import Geometry, chain, join, place
from arpo.learn.rows import flatten
from arpo.learn.settings import ClipLoss, OptimSettings
from arpo.learn.update import Learner

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def forest(seed: int, trees: int = 3, widest: int = 9) -> Geometry:
    """Random trees of up to nine nodes, some without tokens, on one line."""
    draw, parts = np.random.default_rng(seed), []
    for _ in range(trees):
        count = int(draw.integers(1, 10))
        parents = [-1, *(int(draw.integers(0, node)) for node in range(1, count))]
        size_S = draw.integers(0, widest, count) * (draw.random(count) < 0.8)
        size_S[0] += not size_S.any()
        parts.append(place(parents, size_S).geometry)
    return join(parts)


def attend(geometry: Geometry, form: Any, heads: tuple[int, int], dtype: Any = torch.float64) -> list[torch.Tensor]:
    """Output `[1, L, H, D]`, and the gradients of query, key and value for a random one of the output."""
    torch.manual_seed(len(geometry))
    length, size = len(geometry), 8
    shapes = ((heads[0], length, size), (heads[1], length, size), (heads[1], length, size))
    q, k, v = (torch.randn(1, *shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes)
    layer = torch.nn.Module()
    layout = Layout(geometry, form, CPU)
    out, _ = AttentionInterface()[attention.NAME](layer, q, k, v, None, scaling=0.3, layout=layout)
    return [out, *torch.autograd.grad(out, (q, k, v), torch.randn(out.shape, dtype=torch.float64).to(dtype))]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_chains_are_dense_to_rounding(heads: tuple[int, int], seed: int) -> None:
    geometry = forest(seed)
    for chains, dense in zip(attend(geometry, "chains", heads), attend(geometry, "dense", heads), strict=True):
        torch.testing.assert_close(chains, dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_dense_is_softmax_over_what_the_mask_lets_through(seed: int) -> None:
    """Written out for multi-head attention, so that both forms are held to the definition."""
    geometry = forest(seed)
    torch.manual_seed(len(geometry))
    q, k, v = (torch.randn(1, 2, len(geometry), 8, dtype=torch.float64) for _ in range(3))
    score = (q @ k.transpose(-1, -2) * 0.3).masked_fill(~torch.from_numpy(geometry.mask(0, len(geometry))), -torch.inf)
    expected = (score.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(attend(geometry, "dense", (2, 2))[0], expected, rtol=1e-12, atol=1e-12)


def test_chains_in_bfloat16_are_as_near_as_dense() -> None:
    geometry = forest(1, trees=5, widest=30)
    exact = attend(geometry, "dense", (4, 2))
    for ours, theirs, truth in zip(
        attend(geometry, "chains", (4, 2), torch.bfloat16), attend(geometry, "dense", (4, 2), torch.bfloat16), exact,
        strict=True,
    ):  # fmt: skip
        assert ours.dtype is torch.bfloat16
        assert (ours - truth).norm() < 2 * (theirs - truth).norm() < 0.1 * truth.norm()


def filled(geometry: Geometry) -> Geometry:
    return join([geometry, chain(-len(geometry) % FLEX_BLOCK or FLEX_BLOCK)])


LINES = {
    "small trees": forest(0, 2, 9),
    "a block of trees": forest(1, 4, 40),
    "trees of several blocks": forest(2, 2, 150),
    "one tree": forest(3, 1, 300),
    "many trees": forest(4, 9, 30),
    "one token over": chain(FLEX_BLOCK + 1),
    "one token short": chain(2 * FLEX_BLOCK - 1),
    "to the edge": join([chain(FLEX_BLOCK), chain(2 * FLEX_BLOCK)]),
}


@pytest.mark.parametrize("line", LINES)
def test_a_block_mask_is_the_dense_mask(line: str) -> None:
    geometry = filled(LINES[line])
    length = len(geometry)
    ours = block_mask(torch.from_numpy(geometry.end_L))
    expected = torch.from_numpy(geometry.mask(0, length))
    place_L = torch.arange(length)
    one = torch.tensor(0)
    assert torch.equal(ours.mask_mod(one, one, place_L[:, None], place_L[None, :]), expected), "pointwise"
    tiles = expected.view(length // FLEX_BLOCK, FLEX_BLOCK, -1, FLEX_BLOCK).transpose(1, 2)
    partial_NN, full_NN = (
        listed(ours.kv_num_blocks, ours.kv_indices),
        listed(ours.full_kv_num_blocks, ours.full_kv_indices),
    )
    assert not (partial_NN & full_NN).any()
    assert torch.equal(full_NN, tiles.flatten(2).all(-1)), "full blocks are computed without the mask"
    assert torch.equal(partial_NN | full_NN, tiles.flatten(2).any(-1)), "every visible pair, and no block in vain"
    theirs = create_block_mask(ours.mask_mod, None, None, length, length, device="cpu", BLOCK_SIZE=FLEX_BLOCK)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 16) for _ in range(3))
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=expected)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=ours), dense, rtol=1e-5, atol=1e-6)


def listed(number: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Bool `[N, N]` from BlockMask's lists, and from their transposes what the backward pass would compute."""
    chosen = torch.zeros(indices.shape[-2:], dtype=torch.bool)
    for row in range(len(chosen)):
        chosen[row, indices[0, 0, row, : number[0, 0, row]].long()] = True
    return chosen


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([3, 30, 200]))
def test_blocks_of_the_backward_pass_are_those_of_the_forward_pass(seed: int, trees: int, widest: int) -> None:
    ours = block_mask(torch.from_numpy(filled(forest(seed, trees, widest)).end_L))
    assert torch.equal(listed(ours.q_num_blocks, ours.q_indices).T, listed(ours.kv_num_blocks, ours.kv_indices))
    full = listed(ours.full_q_num_blocks, ours.full_q_indices).T
    assert torch.equal(full, listed(ours.full_kv_num_blocks, ours.full_kv_indices))


def test_flex_needs_whole_blocks() -> None:
    with pytest.raises(ValueError, match="a line of 100 tokens is no multiple of 128"):
        block_mask(torch.full((100,), 100))


def test_the_form_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [best_form(torch.device(name)) for name in ("cpu", "cuda", "mps")] == ["chains", "flex", "dense"]
    monkeypatch.setattr(attention, "_flash_backward", None)
    assert best_form(CPU) == "dense", "a torch without the kernel"


def test_afterwards_a_model_attends_as_before() -> None:
    model = tiny_of("llama", VOCAB)
    before = model.config._attn_implementation
    with tree_attention(model):
        assert model.config._attn_implementation == attention.NAME
    assert model.config._attn_implementation == before


@pytest.fixture
def dense() -> Iterator[None]:
    """Learners made here compute with masks."""
    before, attention._flash = attention._flash, None
    yield
    attention._flash = before


def updated(model: Any, packing: str, sampler: Any = None, **optim: Any) -> dict[str, float]:
    """Metrics of one update on a random tree that the model (or `sampler`) sampled; the weights are left alone."""
    tree = sampled_by(random_tree(15), sampler or model, noise=0.3)
    learner = Learner(model, ClipLoss(), OptimSettings(packing=packing, lr=0.0, **optim), total_updates=1)
    return learner.update([tree], [assign(tree, credit_settings())])


@pytest.mark.usefixtures("dense")
def test_a_learner_without_the_kernel_computes_the_same() -> None:
    model = tiny_of("qwen3", VOCAB, hidden_size=16).double()
    got, expected = updated(model, "tree"), updated(model, "padded")
    assert best_form(CPU) == "dense"
    assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-6)


WINDOWED: dict[str, Any] = {
    "Qwen2": lambda window: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=window, max_window_layers=0)
    ),
    "Mistral": lambda window: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)),
    "Gemma2": lambda window: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, sliding_window=window, attn_logit_softcapping=None)
    ),
    "Qwen2Moe": lambda window: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **SIZES, use_sliding_window=True, sliding_window=window, layer_types=["sliding_attention"] * 2,
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8,
        )
    ),
}  # fmt: skip


def windowed(family: str, window: int) -> Any:
    torch.manual_seed(3)
    model = WINDOWED[family](window).double().eval()
    model.config._experts_implementation = "eager"  # torch's grouped product knows no float64
    return model


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_shorter_than_a_trajectory_is_refused(family: str) -> None:
    """At construction if it is shorter than the trial tree (12 tokens), else at the first longer trajectory."""
    remedy = r'but a trajectory has \d+; set optim.packing = "padded"'
    depth = max(len(path) for path in random_tree(15).paths())
    for window in (8, depth - 2):
        model = windowed(family, window)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(
            ConfigError, match=rf"{family}\w*Attention sees a sliding window of {window} tokens, {remedy}"
        ):
            updated(model, "tree")
        assert all(torch.equal(p, old) and p.grad is None for p, old in zip(model.parameters(), before, strict=True))
        assert updated(model, "padded")["grad_norm"] > 0, "the remedy"


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_that_holds_the_trajectory_changes_nothing(family: str) -> None:
    depth = max(len(path) for path in random_tree(15).paths())
    got, expected = (updated(windowed(family, depth), packing) for packing in ("tree", "padded"))
    assert got["sharing"] > 1.5 > expected["sharing"]
    assert comparable(got) == pytest.approx(comparable(expected), rel=1e-5)


def test_capped_scores_are_refused_where_the_kernel_cannot_cap() -> None:
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**SIZES, attn_logit_softcapping=30.0)).eval()
    with pytest.raises(ConfigError, match=r'Gemma2Attention caps its scores.*; set optim.packing = "padded"'):
        updated(model, "tree")
    assert updated(model, "padded")["grad_norm"] > 0


MIXED: dict[str, Any] = {
    "Mamba": lambda: MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, state_size=4)),
    "FalconH1": lambda: FalconH1ForCausalLM(
        FalconH1Config(**SIZES, mamba_d_ssm=16, mamba_n_heads=4, mamba_d_head=4, mamba_d_state=8, mamba_chunk_size=8)
    ),
    "RecurrentGemma": lambda: RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(**SIZES, lru_width=16, attention_window_size=64, block_types=("recurrent", "attention"))
    ),
}


@pytest.mark.parametrize("packing", ["tree", "sequence"])
@pytest.mark.parametrize("family", MIXED)
def test_layers_that_mix_tokens_beside_attention_are_refused_at_start_up(family: str, packing: str) -> None:
    torch.manual_seed(0)
    model = MIXED[family]().eval()
    with pytest.raises(ConfigError, match=rf'{family}.*set optim.packing = "padded"'):
        Learner(model, ClipLoss(), OptimSettings(packing=packing), total_updates=1)
    Learner(model, ClipLoss(), OptimSettings(packing="padded"), total_updates=1)


def test_dropout_in_attention_is_refused_and_the_learner_never_has_any() -> None:
    q = torch.randn(1, 2, 5, 8)
    attend_ = AttentionInterface()[attention.NAME]
    with pytest.raises(ConfigError, match=r"drops 0\.5 of its attention in training"):
        attend_(torch.nn.Module(), q, q, q, None, dropout=0.5, layout=Layout(chain(5), "chains", CPU))
    for checkpointing in (False, True):
        sampler = tiny_of("llama", VOCAB, attention_dropout=0.5).double()
        model = copy.deepcopy(sampler).train()
        tree = sampled_by(random_tree(15), sampler)
        learner = Learner(model, ClipLoss(), OptimSettings(packing="padded"), total_updates=1)
        np.testing.assert_allclose(learner.logprobs([tree])[0], flatten(tree).logp_N, rtol=0, atol=1e-5)
        got = updated(model, "tree", sampler, gradient_checkpointing=checkpointing)
        assert got == pytest.approx(updated(sampler, "tree"), rel=1e-9)


ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    },
}


@pytest.mark.parametrize("packing", ["tree", "padded"])
@pytest.mark.parametrize("kind", ROPES)
def test_a_rotary_embedding_that_looks_at_the_whole_pass_is_refused_where_it_would(kind: str, packing: str) -> None:
    tree = random_tree(3)
    longest = max(len(path) for path in tree.paths())
    for limit in (longest, 12):
        rope = ROPES[kind] | {"original_max_position_embeddings": limit}
        torch.manual_seed(0)
        config = LlamaConfig(**SIZES, max_position_embeddings=limit, rope_parameters=rope)
        learner = Learner(
            LlamaForCausalLM(config), ClipLoss(), OptimSettings(packing=packing, micro_tokens=512), total_updates=1
        )
        credit = [assign(tree, credit_settings("soft"))]
        if limit == longest:
            assert learner.update([tree], credit)["num_groups"] == 1
        else:
            with pytest.raises(ConfigError, match="beyond 12 tokens its rotary embedding turns every token"):
                learner.update([tree], credit)
