"""The forward pass of any transformers decoder with full attention, on the pages of our KV store.

The module's own `forward` runs unchanged: it is given positions, an explicit mask and a cache that writes every row at
its own length. In a decoding step its layers attend to the pages in place, through transformers' attention interface;
elsewhere (prefill, `eager` attention, models without that interface) whole rows of keys are gathered for them. What
cannot work this way (linear attention, state-space layers, windows shorter than the context) is refused when the engine
is built.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from arpo.engine.attention import attend
from arpo.engine.kv import Layout, PageCache, PageStore
from arpo.errors import ArpoError


class Forward(Protocol):
    """A model on the pages of a store. Both passes compute and store the keys and values of the new tokens."""

    def extend(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> None:
        """Keys and values only."""
        ...

    def logits(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Also the logits `[B, V]` after the last column."""
        ...

    def refresh(self) -> None:
        """The module's weights have changed."""
        ...


class StockForward:
    """Calls the module itself, so it sees in-place changes of the weights at once."""

    def __init__(self, model: Any, store: PageStore) -> None:
        self._model = model
        self._store = store
        self._layers = text_config(model).num_hidden_layers
        accepted = inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"  # renamed in transformers 5.24
        self._additive = text_config(model)._attn_implementation == "eager"
        self._pages = bool(getattr(model, "_supports_attention_backend", False)) and not self._additive

    def extend(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> None:
        """See `Forward`."""
        self._call(self._model.base_model, ids_BQ, position_BQ, layout)

    def logits(self, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout) -> torch.Tensor:
        """See `Forward`."""
        if self._pages:
            with _reading_pages(text_config(self._model), _Reading(self._store, layout)) as reading:
                output = self._call(self._model, ids_BQ, position_BQ, layout, in_place=True)
            if reading.layer != self._layers:
                raise ArpoError(
                    f"{type(self._model).__name__} attended {reading.layer} times in {self._layers} layers through "
                    "transformers' attention interface; load it with attn_implementation='eager'"
                )
        else:
            output = self._call(self._model, ids_BQ, position_BQ, layout)
        if len(self._store.keys) != self._layers:
            raise ArpoError(
                f"{type(self._model).__name__} cached {len(self._store.keys)} of its {self._layers} layers; "
                "the local engine needs a decoder whose every layer has full attention and its own keys and values"
            )
        return output.logits[:, -1]

    def refresh(self) -> None:
        """See `Forward`; nothing is copied, so there is nothing to do."""

    def _call(
        self, network: Any, ids_BQ: torch.Tensor, position_BQ: torch.Tensor, layout: Layout, in_place: bool = False
    ) -> Any:
        return network(
            input_ids=ids_BQ,
            position_ids=position_BQ,
            attention_mask=self._bias(layout.mask) if self._additive else layout.mask,
            use_cache=True,
            **{self._cache_name: PageCache(self._store, self._layers, layout, in_place)},
        )

    def _bias(self, mask: torch.Tensor) -> torch.Tensor:
        """What `eager` attention adds to its scores."""
        dtype = self._model.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(slots=True)
class _Reading:
    """A decoding pass under way. `layer`: attention layers that have been computed."""

    store: PageStore
    layout: Layout
    layer: int = 0


_NAME = "arpo_pages"
_under_way: list[_Reading] = []


@contextmanager
def _reading_pages(config: Any, reading: _Reading) -> Iterator[_Reading]:
    """Within, the layers attend to pages; afterwards the configuration is as it was (a learner may share it)."""
    before = config._attn_implementation
    config._attn_implementation = _NAME
    _under_way.append(reading)
    try:
        yield reading
    finally:
        _under_way.pop()
        config._attn_implementation = before


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The interface of transformers: query `[B, heads, 1, D]` -> `[B, 1, heads, D]`; key and value are in the pages."""
    if any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise ArpoError(
            f"{type(module).__name__} caps its scores or adds to them, which reading pages in place cannot do; load "
            "the model with attn_implementation='eager'"
        )
    reading = _under_way[-1]
    keys, values = reading.store.keys[reading.layer], reading.store.values[reading.layer]
    reading.layer += 1
    assert reading.layout.plan is not None
    grouped = query[:, :, 0].unflatten(1, (keys.shape[1], -1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(grouped, keys, values, reading.layout.plan, scale).flatten(1, 2)[:, None], None


AttentionInterface.register(_NAME, _attend)


def text_config(model: Any) -> Any:
    """The language part of a model's configuration."""
    return model.config.get_text_config()


def check_attention(model: Any, context: int) -> None:
    """Refuse models whose layers cannot take the page cache over `context` tokens."""
    config, name = text_config(model), type(model).__name__
    if model.config.is_encoder_decoder:
        raise ArpoError(f"{name} is an encoder-decoder; the local engine needs a decoder-only causal LM")
    implementation = config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        raise ArpoError(f"{name} uses {implementation!r} attention; load it with attn_implementation='sdpa'")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    other = kinds - {"full_attention", "sliding_attention"}
    if other or getattr(model, "_is_stateful", False):
        raise ArpoError(
            f"{name} has {', '.join(sorted(other)) or 'recurrent'} layers; the local engine caches attention only"
        )
    window = _window(config, kinds)
    if window is not None and window < context:
        raise ArpoError(
            f"{name} attends to the last {window} tokens only in some layers, the context is {context}; "
            f"set engine.max_context = {window} (within the window it is full attention)"
        )


def _window(config: Any, kinds: set[str]) -> int | None:
    """The sliding window that some layer really uses, or None."""
    if getattr(config, "layer_types", None):
        return config.sliding_window if "sliding_attention" in kinds else None
    return getattr(config, "sliding_window", None)
