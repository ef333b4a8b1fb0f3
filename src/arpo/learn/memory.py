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
    """Checkpointing needs training mode; the ratio must still compare the policy with itself.

    Rates stand in modules of their own, or as numbers in whichever layer calls the function (`attention_dropout`,
    `dropout`, `activation_dropout`, `layerdrop`).
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
