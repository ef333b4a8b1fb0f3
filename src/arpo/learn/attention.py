"""Exact attention over a forest on one line, in the form that the device computes fastest.

Three forms of the same mask (`arpo.learn.layout`):

- `chains` (CPU): no mask at all. Every chain is a causal block and every branching point a full rectangle, each one
  call of torch's flash kernel on slices; their softmaxes are joined by their log-sum-exps. The backward pass gives each
  block the joined output and log-sum-exp, so that its share of the gradient is exact and nothing is merged there
  (the identity that ring attention rests on: Liu et al. 2023, "Ring Attention with Blockwise Transformers").
- `flex` (CUDA): FlexAttention with a block mask made from the ends of subtrees, never from an L x L mask.
- `dense` (everything else, and the yardstick): scaled_dot_product_attention, one mask per tree.

The model's own layers run unchanged: the form is registered as an attention implementation of transformers and finds
the line's layout among the keyword arguments that the layers pass on. A layer that cannot hold to the mask (a sliding
window shorter than the trajectory, capped or sink-extended scores, key dropout) is an error.

Shapes: L tokens, H query heads, K key/value heads, G = H / K, D head size. Batch is 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from arpo.errors import ConfigError
from arpo.learn.layout import Geometry, Span

Form = Literal["chains", "flex", "dense"]
NAME = "arpo_tree"
"""Of the attention implementation."""
FLEX_BLOCK = 128
"""Tokens per block of a flex mask; a line for `flex` has a multiple of them."""
_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_flash_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def best_form(device: torch.device) -> Form:
    """The fastest form that this device and this torch can compute with gradients."""
    if device.type == "cuda":
        return "flex"
    return "chains" if device.type == "cpu" and _flash is not None and _flash_backward is not None else "dense"


@dataclass(frozen=True, eq=False)
class Layout:
    """A geometry on a device, in a form. Masks are made once and serve all layers."""

    geometry: Geometry
    form: Form
    device: torch.device
    _dense: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, start: int, stop: int) -> torch.Tensor:
        """Of one stretch, bool, for `dense`."""
        if (start, stop) not in self._dense:
            self._dense[start, stop] = torch.from_numpy(self.geometry.mask(start, stop)).to(self.device)
        return self._dense[start, stop]

    @cached_property
    def block_mask(self) -> Any:
        """For `flex`."""
        return block_mask(torch.from_numpy(self.geometry.end_L).to(self.device))


def block_mask(end_L: torch.Tensor) -> Any:
    """FlexAttention's BlockMask of the ancestor mask, from block minima and maxima of `end_L` alone.

    Of two blocks i > j: some query sees some key iff the largest end in j lies beyond the first query of i; every query
    sees every key iff the smallest does beyond the last.
    """
    from torch.nn.attention.flex_attention import BlockMask

    length = len(end_L)
    if length % FLEX_BLOCK:
        raise ValueError(f"a line of {length} tokens is no multiple of {FLEX_BLOCK}")
    ends_NB = end_L.view(-1, FLEX_BLOCK)
    block_N = torch.arange(len(ends_NB), device=end_L.device)
    before_NN = block_N[:, None] > block_N[None, :]
    first_N = (block_N * FLEX_BLOCK)[:, None]
    seen_NN = before_NN & (ends_NB.amax(1)[None, :] > first_N)
    full_NN = before_NN & (ends_NB.amin(1)[None, :] >= first_N + FLEX_BLOCK)
    partial_NN = (seen_NN & ~full_NN) | torch.eye(len(ends_NB), dtype=torch.bool, device=end_L.device)

    def sees(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < end_L[key])

    return BlockMask.from_kv_blocks(
        *_listed(partial_NN), *_listed(full_NN), BLOCK_SIZE=FLEX_BLOCK, mask_mod=sees, seq_lengths=(length, length)
    )


def _listed(chosen_NN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks each row has, and which: the chosen ones first."""
    order_NN = torch.argsort(chosen_NN.to(torch.int32), dim=1, descending=True, stable=True)
    return chosen_NN.sum(1, dtype=torch.int32)[None, None], order_NN.to(torch.int32)[None, None]


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model's layers attend as the `layout` passed to its trunk says; afterwards as before.

    Raises ConfigError for a model whose attention cannot be replaced.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ConfigError(
            f"model {type(model).__name__}: its attention cannot be replaced, so shared tokens cannot be computed "
            'once; set optim.packing = "padded"'
        )
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _window(*_shape: Any, local_size: int | None = None, **_options: Any) -> int | None:
    """In place of a mask, what of it is not in the layout: the window or chunk of the layers that it is made for.

    Not every architecture tells its layers of their window (Qwen2Moe, Phimoe and Llama4 put it in the mask alone).
    """
    return local_size


AttentionMaskInterface.register(NAME, _window)


def _refuse(
    module: torch.nn.Module, layout: Layout | None, window: int | None, dropout: float, options: dict[str, Any]
) -> None:
    """An error for whatever would make a layer compute something else than the tree."""
    problem = ""
    if layout is None:
        problem = "does not hand on the layout of the tree"
    elif window is not None and window < layout.geometry.depth:
        problem = f"sees a sliding window of {window} tokens, but a trajectory has {layout.geometry.depth}"
    elif dropout:
        problem = f"drops {dropout:g} of its attention in training, which no two copies of a token would share"
    elif options.get("s_aux") is not None or options.get("position_bias") is not None:
        problem = "adds sinks or biases to its scores"
    elif options.get("softcap") is not None and layout.form != "flex":
        problem = "caps its scores, which this device's kernel cannot do"
    if problem:
        raise ConfigError(f'attention layer {type(module).__name__} {problem}; set optim.packing = "padded"')


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: int | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The interface of transformers: query `[1, H, L, D]`, key and value `[1, K, L, D]` -> `[1, L, H, D]`."""
    _refuse(module, layout, options.get("sliding_window") or attention_mask, dropout, options)
    assert layout is not None
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if layout.form == "flex":
        from transformers.integrations.flex_attention import flex_attention_forward

        softcap = options.get("softcap")
        out, _ = flex_attention_forward(
            module, query, key, value, layout.block_mask, scaling=scale, softcap=softcap, training=module.training
        )
        return out, None
    if layout.form == "dense" or value.shape[-1] != query.shape[-1]:
        return _dense(query, key, value, scale, layout), None
    return _Chains.apply(query, key, value, scale, layout.geometry), None


AttentionInterface.register(NAME, _attend)


def _dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, layout: Layout) -> torch.Tensor:
    outs = []
    for start, stop in layout.geometry.spans:
        q, k, v = (x[:, :, start:stop] for x in (query, key, value))
        mask = layout.mask(start, stop)
        outs.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True))
    return torch.cat(outs, 2).transpose(1, 2)


def _grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Key/value heads as the batch, their query heads beside them: `[K, G, L, D]` each, nothing copied."""
    kv_heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    grouped = query[0].unflatten(0, (kv_heads, groups))
    return grouped, *(x[0][:, None].expand(kv_heads, groups, *x.shape[2:]) for x in (key, value))


class _Chains(torch.autograd.Function):
    """Blocks of the flash kernel, joined. Output `[1, L, H, D]`."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, geometry: Geometry
    ) -> torch.Tensor:
        q, k, v = _grouped(query, key, value)
        out_LHD = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
        out = out_LHD.permute(1, 0, 2).unflatten(0, q.shape[:2])
        lse = query.new_empty(q.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        for start, stop in geometry.causal:
            own = slice(start, stop)
            out[:, :, own], lse[:, :, own] = _flash(q[:, :, own], k[:, :, own], v[:, :, own], 0.0, True, scale=scale)
        for (q0, q1), (k0, k1) in geometry.full:
            rows, seen = slice(q0, q1), slice(k0, k1)
            _join(out[:, :, rows], lse[:, :, rows], *_flash(q[:, :, rows], k[:, :, seen], v[:, :, seen], scale=scale))
        ctx.save_for_backward(query, key, value, out_LHD, lse)
        ctx.scale, ctx.geometry = scale, geometry
        return out_LHD[None]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out_LHD, lse = ctx.saved_tensors
        q, k, v = _grouped(query, key, value)
        out = out_LHD.permute(1, 0, 2).unflatten(0, q.shape[:2])
        grad = grads[0][0].permute(1, 0, 2).unflatten(0, q.shape[:2])
        dq_LHD, dk_LKD, dv_LKD = (x.new_empty(x.shape[2], x.shape[1], x.shape[3]) for x in (query, key, value))
        dq = dq_LHD.permute(1, 0, 2).unflatten(0, q.shape[:2])
        dk, dv = dk_LKD.transpose(0, 1), dv_LKD.transpose(0, 1)
        shared = (ctx.scale, grad, q, k, v, out, lse)
        for own in ctx.geometry.causal:  # these cover the line: they assign, the others add
            dq[:, :, slice(*own)], dk[:, slice(*own)], dv[:, slice(*own)] = _shares(shared, own, own, causal=True)
        for rows, seen in ctx.geometry.full:
            share_q, share_k, share_v = _shares(shared, rows, seen, causal=False)
            dq[:, :, slice(*rows)] += share_q
            dk[:, slice(*seen)] += share_k
            dv[:, slice(*seen)] += share_v
        return *(x.transpose(0, 1)[None] for x in (dq_LHD, dk_LKD, dv_LKD)), None, None


def _shares(
    shared: tuple[Any, ...], rows: Span, seen: Span, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One block's part of the gradients: of its queries `[K, G, .., D]`, of its keys and values `[K, .., D]`."""
    scale, grad, q, k, v, out, lse = shared
    at, of = slice(*rows), slice(*seen)
    dq, dk, dv = _flash_backward(
        grad[:, :, at], q[:, :, at], k[:, :, of], v[:, :, of], out[:, :, at], lse[:, :, at], 0.0, causal, scale=scale
    )
    if dk.shape[1] == 1:
        return dq, dk[:, 0], dv[:, 0]
    return dq, dk.sum(1), dv.sum(1)


def _join(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> None:
    """Softmax over two disjoint sets of keys from the softmax over each, in place."""
    both = torch.logaddexp(lse, other_lse)
    out.mul_((lse - both).exp_()[..., None]).add_(other * (other_lse - both).exp_()[..., None])
    lse.copy_(both)
