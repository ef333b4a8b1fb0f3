"""A two-layer Qwen3 whose weights are a formula, so that two environments build the same one with no file."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 32


def formula_model(phase: float, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """Weight k of the n-th parameter (by name) is 0.3 sin(0.7 k + 1.3 n + phase), of a norm 1 + that."""
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for n, (name, parameter) in enumerate(sorted(model.named_parameters())):
            steps = torch.arange(parameter.numel(), dtype=torch.float64)
            values = 0.3 * torch.sin(0.7 * steps + 1.3 * n + phase) + ("norm" in name)
            parameter.copy_(values.view_as(parameter).to(dtype))
    return model
