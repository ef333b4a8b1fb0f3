"""Tiny random models and a byte-level tokenizer, built in memory: nothing is downloaded."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

torch.set_num_threads(1)


def byte_tokenizer():
    """Ids 0-255 are bytes, 256 is `<eos>`, 257 `</search>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
    tokenizer.add_tokens(["</search>"], special_tokens=False)
    return tokenizer


def tiny(kind, vocab=258, **changes):
    """A random two-layer model of that architecture, with weights large enough for peaked distributions."""
    common = {"vocab_size": vocab, "eos_token_id": 256, "bos_token_id": None, "pad_token_id": None}
    dense = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
    }
    torch.manual_seed(5)
    if kind == "qwen3":
        return Qwen3ForCausalLM(
            Qwen3Config(**common, **{**dense, "head_dim": 16, "tie_word_embeddings": True, **changes})
        ).eval()
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**common, **{**dense, **changes})).eval()
    if kind == "gemma":
        return GemmaForCausalLM(GemmaConfig(**common, **{**dense, "head_dim": 16, **changes})).eval()
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**common, **{**dense, **changes})).eval()
    small = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.2}
    return GPT2LMHeadModel(GPT2Config(**common, **{**small, **changes})).eval()
