"""Trading time for memory: activations that are computed again in the backward pass."""

from typing import Any

from torch import nn

from arpo.errors import ConfigError


def enable_checkpointing(model: Any) -> None:
    """Keep only the inputs of a transformers model's layers, and compute each layer again in the backward pass.

    It acts in training mode alone. The non-reentrant variant: gradients are those without it, also where the inputs of
    a layer need none because everything but an adapter is frozen. transformers 5.24 has renamed the switch and warns of
    the old name; 5.16 knows only that. Raises ConfigError for an architecture that cannot do it.
    """
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"optim.gradient_checkpointing: {type(model).__name__} does not support it; leave it out and lower "
            "optim.micro_tokens instead"
        )
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def disable_dropout(model: nn.Module) -> None:
    """Checkpointing needs training mode; the ratio must still compare the policy with itself."""
    module: Any
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
