"""The reference of a KL term: what the policy was before training.

Where all weights train that takes a second model. Where only an adapter trains, the first weights are still there: the
same model without its adapter is the reference, and nothing is held in memory twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from arpo.engine.lora import base_weights, is_adapted
from arpo.learn.logprobs import PolicyHead


class BaseHead(PolicyHead):
    """The head of the base within an adapted model. ValueError for a model without an adapter."""

    def __init__(self, model: Any, temperature: float = 1.0, **options: Any) -> None:
        if not is_adapted(model):
            raise ValueError("a model without an adapter cannot be its own reference: give the learner another one")
        with base_weights(model):
            super().__init__(model, temperature, **options)

    @contextmanager
    def attention(self) -> Iterator[None]:
        """As for any head; besides, the adapter is off within."""
        with super().attention(), base_weights(self.model):
            yield
