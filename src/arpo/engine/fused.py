"""A compact forward pass for dense Llama-type decoders: Llama, Mistral, Qwen2, Qwen3.

A small model spends most of a decoding step between kernels. Here a layer has few operations: one matrix for q, k and
v, one for gate and up, q and k normalised and rotated together, attention on the pages of the KV store.
The weights are copies, made when the engine is built and at every publish (of a layer with an adapter the merged ones);
`tests/engine` holds the logits to those of the module.

Shapes: B rows, Q new tokens, H key/value heads, G query heads per key/value head, D head size, T positions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from arpo.engine.attention import attend
from arpo.engine.kv import Layout, PageStore
from arpo.engine.lora import folded, is_adapted_layer
from arpo.engine.stock import text_config

_KINDS = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_ROPES = frozenset({"default", "linear", "llama3"})
"""Rotary embeddings that depend on the position alone."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_in: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    norm_qk: torch.Tensor | None
    """`[G*H + H, D]`: of every query head, then of every key head."""
    out: torch.Tensor
    out_bias: torch.Tensor | None
    norm_mid: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


def can_fuse(model: Any) -> bool:
    """True if `FusedForward` computes what the module computes."""
    config = text_config(model)
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        type(model).__name__ in _KINDS
        and config.hidden_act == "silu"
        and rope.get("rope_type") in _ROPES
        and all(_is_linear(module) for name, module in model.named_modules() if name.endswith(("_proj", "lm_head")))
    )


def _is_linear(module: Any) -> bool:
    """A plain linear layer, or an adapted one whose merged weights lose nothing to rounding."""
    if is_adapted_layer(module):
        return type(module.base_layer) is Linear and module.base_layer.weight.dtype.itemsize >= 4
    return type(module) is Linear


class FusedForward:
    """Implements `arpo.engine.stock.Forward` with its own copy of the weights."""

    def __init__(self, model: Any, store: PageStore, context: int) -> None:
        self._model = model
        self._store = store
        config = text_config(model)
        self._eps = config.rms_norm_eps
        first = model.model.layers[0].self_attn
        self._size = first.head_dim
        self._kv_heads = config.num_key_value_heads
        self._groups = config.num_attention_heads // self._kv_heads
        with torch.inference_mode():
            position_1T = torch.arange(context, device=model.device)[None]
            cos, sin = model.model.rotary_emb(model.model.embed_tokens.weight, position_1T)
            self._cos_TD, self._sin_TD = cos[0], _signed(sin[0])
        self.refresh()

    def refresh(self) -> None:
        """Copy the module's weights."""
        with torch.inference_mode():
            self._embed = self._model.model.embed_tokens.weight.detach().clone()
            self._head = folded(self._model.lm_head).weight.detach().clone()
            self._norm = self._model.model.norm.weight.detach().clone()
            self._layers = [self._copy(layer) for layer in self._model.model.layers]

    def extend(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> None:
        """See `Forward`."""
        self._hidden(ids_BQ, position_BQ, layout)

    def logits(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> torch.Tensor:
        """See `Forward`."""
        last = self._hidden(ids_BQ, position_BQ, layout)[:, -1]
        return linear(self._rms(last, self._norm), self._head)

    def _hidden(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> torch.Tensor:
        x = embedding(ids_BQ, self._embed)
        cos, sin = self._cos_TD[position_BQ][:, :, None], self._sin_TD[position_BQ][:, :, None]
        bias = None if layout.plan else _bias(layout.mask, x)
        for index, layer in enumerate(self._layers):
            heads = self._attend(index, layer, self._rms(x, layer.norm_in), cos, sin, bias, layout)
            x = x + linear(heads, layer.out, layer.out_bias)
            wide = linear(self._rms(x, layer.norm_mid), layer.gate_up, layer.gate_up_bias)
            gate, up = wide.chunk(2, -1)
            x = x + linear(silu(gate) * up, layer.down, layer.down_bias)
        return x

    def _attend(
        self,
        index: int,
        layer: _Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        bias: torch.Tensor | None,
        layout: Layout,
    ) -> torch.Tensor:
        """Attention of one layer before its output projection: `[B, Q, G*H*D]`."""
        rows, new, _ = x.shape
        queries = self._groups * self._kv_heads
        qkv = linear(x, layer.qkv, layer.qkv_bias)
        split = (queries + self._kv_heads) * self._size
        qk = qkv[..., :split].view(rows, new, -1, self._size)
        if layer.norm_qk is not None:
            qk = rms_norm(qk, (self._size,), eps=self._eps) * layer.norm_qk
        qk = qk * cos + qk.roll(self._size // 2, -1) * sin
        v = qkv[..., split:].view(rows, new, -1, self._size).transpose(1, 2)
        self._store.write(index, qk[:, :, queries:].transpose(1, 2), v, layout)
        q = qk[:, :, :queries]
        if layout.plan is not None:
            grouped = q.reshape(rows, self._kv_heads, self._groups, self._size)
            mixed = attend(grouped, self._store.keys[index], self._store.values[index], layout.plan, self._size**-0.5)
            return mixed.view(rows, new, -1)
        keys, values = self._store.gather(index, layout)
        mixed = scaled_dot_product_attention(q.transpose(1, 2), keys, values, bias, enable_gqa=self._groups > 1)
        return mixed.transpose(1, 2).reshape(rows, new, -1)

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _copy(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, qkv_bias = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up, gate_up_bias = _joined(mlp.gate_proj, mlp.up_proj)
        out, out_bias = _joined(attention.o_proj)
        down, down_bias = _joined(mlp.down_proj)
        return _Layer(
            norm_in=layer.input_layernorm.weight.detach().clone(),
            qkv=qkv,
            qkv_bias=qkv_bias,
            norm_qk=self._norm_qk(attention),
            out=out,
            out_bias=out_bias,
            norm_mid=layer.post_attention_layernorm.weight.detach().clone(),
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            down=down,
            down_bias=down_bias,
        )

    def _norm_qk(self, attention: Any) -> torch.Tensor | None:
        if not hasattr(attention, "q_norm"):
            return None
        queries = attention.q_norm.weight.expand(self._groups * self._kv_heads, -1)
        return torch.cat([queries, attention.k_norm.weight.expand(self._kv_heads, -1)])


def _joined(*layers: Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights and biases of several projections of the same input, as one projection."""
    parts = [folded(layer) for layer in layers]
    weight = torch.cat([part.weight.detach() for part in parts])
    biases = [part.bias for part in parts if part.bias is not None]
    return weight, torch.cat([bias.detach() for bias in biases]) if biases else None


def _bias(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What is added to scores: minus infinity where a query may not look."""
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -torch.inf)


def _signed(sin_TD: torch.Tensor) -> torch.Tensor:
    """`roll(x) * signed sin` is `rotate_half(x) * sin`."""
    half = sin_TD.shape[-1] // 2
    return torch.cat([-sin_TD[:, :half], sin_TD[:, half:]], -1)
