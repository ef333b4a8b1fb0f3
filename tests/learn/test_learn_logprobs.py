"""The picked head against full forward passes, over model families."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3ForCausalLM,
)

from arpo.errors import ConfigError
from arpo.learn import logprobs
from arpo.learn.logprobs import PolicyHead

Maker = Callable[..., Any]
SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=5.0)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)),
}


def picked(seed: int = 0) -> tuple[torch.Tensor, ...]:
    """(input, rows, columns, labels) of eleven positions in three rows."""
    draw = torch.Generator().manual_seed(seed)
    input_BT = torch.randint(1, 23, (3, 8), generator=draw)
    row_P = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    column_P = torch.tensor([1, 2, 7, 0, 3, 4, 5, 2, 3, 6, 7])
    return input_BT, row_P, column_P, torch.randint(0, 23, (11,), generator=draw)


def check(model: Any, temperature: float, tolerance: float) -> None:
    input_BT, row_P, column_P, label_P = picked()
    full = (model(input_ids=input_BT).logits.float() / temperature).log_softmax(-1)[row_P, column_P]
    logp_P, entropy_P = PolicyHead(model, temperature)(input_BT, row_P, column_P, label_P)
    expected = full.gather(1, label_P[:, None])[:, 0]
    torch.testing.assert_close(logp_P, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(entropy_P, -(full.exp() * full).sum(-1), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    torch.manual_seed(0)
    check(FAMILIES[family]().eval(), 0.7, 1e-4)


def test_bfloat16(tiny: Maker) -> None:
    check(tiny(dtype=torch.bfloat16), 1.0, 0.05)


def test_an_unknown_scaling_is_an_error_at_start_up(tiny: Maker) -> None:
    class Louder(Qwen3ForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 1.1
            return out

    with pytest.raises(ConfigError, match="Louder: its logits are not its output embedding"):
        PolicyHead(Louder(tiny().config).eval())


def test_not_a_transformers_model() -> None:
    with pytest.raises(ConfigError, match="Linear is not a transformers model"):
        PolicyHead(torch.nn.Linear(2, 2))


def test_greedy_sampling_cannot_be_trained_on(tiny: Maker) -> None:
    with pytest.raises(ConfigError, match=r"rollout.temperature = 0"):
        PolicyHead(tiny(), 0.0)


def test_chunks_change_nothing(tiny: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(dtype=torch.float64)
    results = []
    for logits in (1 << 26, 4 * 23):  # all at once; four positions at a time
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", logits)
        logp_P, entropy_P = PolicyHead(model, entropy_gradient=True)(*picked())
        model.zero_grad()
        (logp_P.sum() + 0.3 * entropy_P.sum()).backward()
        results.append((logp_P, entropy_P, *[p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_entropy_carries_a_gradient_only_on_demand(tiny: Maker) -> None:
    assert not PolicyHead(tiny())(*picked())[1].requires_grad
    assert PolicyHead(tiny(), entropy_gradient=True)(*picked())[1].requires_grad
