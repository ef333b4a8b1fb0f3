"""What engines read off a model, and which weights they take."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from arpo.engine.lora import merged_state_dict
from arpo.engine.rows import frozen
from arpo.engine.stock import check_attention, text_config
from arpo.errors import ArpoError


def state_of(module: Any, *, adapted: bool) -> Mapping[str, torch.Tensor]:
    """A module's weights for an engine whose own module has an adapter, or has none."""
    return module.state_dict() if adapted else merged_state_dict(module)


def check_state(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Refuse a state dict before any of it is copied."""
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    new = {name: tuple(value.shape) for name, value in state.items()}
    wrong = sorted(name for name in own.keys() | new.keys() if own.get(name) != new.get(name))
    if wrong:
        name = wrong[0]
        raise ArpoError(
            f"the published weights do not fit {type(model).__name__}: {len(wrong)} tensors differ, {name!r} is "
            f"{new.get(name, 'missing')} there and {own.get(name, 'unknown')} here"
        )


def context_of(model: Any, asked: int | None, cached: int) -> int:
    """Longest sequence: of the model, of the option, and of a cache that must hold it."""
    known = getattr(text_config(model), "max_position_embeddings", None)
    context = min(value for value in (known, asked, cached) if value is not None)
    check_attention(model, context)
    return context


def end_tokens_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """End-of-sequence ids of the generation config, the model's config and the tokenizer."""
    generation = getattr(model.generation_config, "eos_token_id", None)
    return ids_of(generation, model.config.eos_token_id, tokenizer.eos_token_id)


def ids_of(*values: int | Sequence[int] | None) -> frozenset[int]:
    """All ids among values that are one id, several or none, as configurations have them."""
    found: set[int] = set()
    for value in values:
        if value is not None:
            found.update(value if isinstance(value, Sequence) else [value])
    return frozen(found)
