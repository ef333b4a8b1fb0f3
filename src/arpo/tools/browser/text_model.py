"""What tells the tool what a page says: messages in, text out. Kept so small that any model can stand behind it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Message = Mapping[str, str]
"""`role` ("system" or "user") and `content`."""


class TooLongError(Exception):
    """The messages do not fit into what the model can read."""


class TextModel(Protocol):
    """Completes a conversation. Safe to call concurrently from one event loop."""

    @property
    def id(self) -> str:
        """Which model, and which version of its weights: equal ids complete alike. No secrets."""
        ...

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, seed: int, *, temperature: float = 0.0
    ) -> str:
        """The model's text, at most `max_tokens` of it. Nothing in the contents can become a control token where that
        is in the caller's hands. Raises TooLongError, EngineError.
        """
        ...
