"""Text from an engine that takes tokens: the policy that is trained, or any other.

A page is written by strangers, so its text must not become control tokens on its way into the prompt: `ChatTemplate`
lets these come of the template's own text alone.
"""

from collections.abc import Sequence
from typing import Any

from arpo.engine.base import Engine, SampleParams
from arpo.protocol.template import ChatTemplate
from arpo.tools.browser.text_model import Message, TooLongError

_DATE = "2025-01-01"
"""What templates that print a date take for today, as everywhere: equal prompts on all days."""


class EngineText:
    """A TextModel over an engine and the tokenizer of its model. `name`: of the model, for caches."""

    def __init__(self, engine: Engine, tokenizer: Any, name: str = "policy") -> None:
        """Raises ConfigError if the tokenizer has no chat template."""
        self._engine, self._tokenizer, self._name = engine, tokenizer, name
        self._template = ChatTemplate(tokenizer, (), {"enable_thinking": False}, _DATE)
        ends = [tokenizer.convert_tokens_to_ids(text) for text in self._template.turn_ends]
        self._end_tokens = tuple(dict.fromkeys(end for end in (tokenizer.eos_token_id, *ends) if end is not None))

    @property
    def id(self) -> str:
        return f"{self._name}@{self._engine.version}"

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, seed: int, *, temperature: float = 0.0
    ) -> str:
        """See TextModel."""
        tokens = self._template.ids(self._folded(messages) if self._template.folds_system else messages)
        room = self._engine.capabilities.max_context - len(tokens)
        if room < max_tokens:
            raise TooLongError(f"{len(tokens)} tokens leave room for {room}, not {max_tokens}")
        params = SampleParams(max_tokens, temperature=temperature, end_tokens=self._end_tokens)
        segment = await self._engine.sample(tokens.tolist(), params, seed)
        text: str = self._tokenizer.decode(
            segment.tokens.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @staticmethod
    def _folded(messages: Sequence[Message]) -> list[Message]:
        """The system's words before the user's first."""
        system = [message["content"] for message in messages if message["role"] == "system"]
        first, *rest = [message for message in messages if message["role"] != "system"]
        return [{"role": "user", "content": "\n\n".join([*system, first["content"]])}, *rest]
