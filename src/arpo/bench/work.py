"""Floating-point work of one gradient, counted from what is really computed.

Three things cost: the linear layers of the trunk for every token that goes through it, padding included; the output
embedding for every token whose log-probability is wanted; and the two products of attention (scores, values) for every
pair of query and key that the kernel visits. A multiplication and an addition are two operations. Norms, activations,
rotations and the softmax over the vocabulary are not counted: they are a few per cent of the work, though more of the
time, and it is against the counted work that the time is held.

The backward pass of a matrix product costs two more of its size, so a linear layer counts three times. The fused
attention kernels keep no scores and compute them again: five products backward after two forward, three and a half
times. The head of a pass with many labels is cut into chunks whose forward pass is computed again: four times.

Counted like this, `padded / tree` is the most that sharing can gain on these layers; `rho` would be, if all of the work
were linear in tokens and labels were shared like tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

LINEAR, ATTENTION, RECOMPUTED = 3.0, 3.5, 4.0
"""Forward and backward, in units of the forward pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass. `tokens` through the trunk, padding included; `pairs` of query and key that
    attention visits in each layer and head; `labels` whose log-probability is computed; `chunked`: whether the head
    computes its forward pass again."""

    tokens: int
    pairs: int
    labels: int
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """Forward operations of a model: per token of the trunk, per label, per query-key pair (all layers and heads)."""

    token: float
    label: float
    pair: float

    def gradient(self, passes: Iterable[Pass]) -> float:
        """Operations of one forward and backward over all `passes`."""
        return sum(
            LINEAR * self.token * one.tokens
            + (RECOMPUTED if one.chunked else LINEAR) * self.label * one.labels
            + ATTENTION * self.pair * one.pairs
            for one in passes
        )


def rates(model: Any) -> Rates:
    """Rates of a transformers causal language model with full attention in all layers.

    Linear layers are read off the modules, so grouped queries, biases' absence and odd widths need no special case.
    """
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    linear = [m for m in model.base_model.modules() if isinstance(m, nn.Linear)]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Rates(
        token=sum(2.0 * one.weight.numel() for one in linear),
        label=2.0 * head.weight.numel(),
        pair=2.0 * 2.0 * width * config.num_attention_heads * config.num_hidden_layers,
    )


def dominant(model: Any, tokens: int, labels: int) -> tuple[int, int, int]:
    """(rows, inputs, outputs) of the matrix product in which `model` spends most of its work."""
    head = model.get_output_embeddings()
    cost = {(labels, head.in_features, head.out_features): float(labels * head.weight.numel())}
    for one in model.base_model.modules():
        if isinstance(one, nn.Linear):
            form = (tokens, one.in_features, one.out_features)
            cost[form] = cost.get(form, 0.0) + float(tokens * one.weight.numel())
    return max(cost, key=lambda form: cost[form])
