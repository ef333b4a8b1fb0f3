"""A model spoken to through its chat template, without the dialect of a run.

Baselines bring formats of their own, and some ask the model for help beside the trajectory. Both start from the
template alone. Whatever a task, a page or the model itself has written yields no control token in a prompt.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arpo.errors import ConfigError
from arpo.protocol.base import Dialect
from arpo.protocol.reading import thinking
from arpo.protocol.template import ChatTemplate, Message

NO_BLOCK: Mapping[str, Any] = {"enable_thinking": False}
"""For templates that can do without a reasoning block: where reasoning is to stand in the text, or short."""
_DATE = "2025-01-01"
_CLOSED = "</think>"
_CHANNEL, _FINAL = "<|channel|>", "<|channel|>final<|message|>"
"""gpt-oss divides what it writes into channels; what it says is in the final one."""


class Voice:
    """The chat template of one tokenizer and what ends a turn in it."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None, date: str = _DATE) -> None:
        """`options`: variables of the template. Raises ConfigError if the tokenizer has no end token."""
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, (), options or {}, date)
        self.plain = self.template.plain
        ends = [tokenizer.convert_tokens_to_ids(text) for text in self.template.turn_ends]
        self.end_tokens = tuple(dict.fromkeys(int(end) for end in (tokenizer.eos_token_id, *ends) if end is not None))
        if not self.end_tokens:
            raise ConfigError(f"the tokenizer {tokenizer.name_or_path!r} has no end token; set its eos_token")

    def conversation(self, system: str, messages: Sequence[Message]) -> list[Message]:
        """The messages with `system` before them, or in the first one where the template has no place for it."""
        own = [message["content"] for message in messages if message["role"] == "system"]
        rest = [message for message in messages if message["role"] != "system"]
        whole = "\n\n".join([*own, system])
        if not self.template.folds_system:
            return [{"role": "system", "content": whole}, *rest]
        return [{**rest[0], "content": f"{whole}\n\n{rest[0]['content']}"}, *rest[1:]]

    def prompt(self, system: str, messages: Sequence[Message]) -> np.ndarray:
        """Token ids up to the model's turn, int32 `[T]`."""
        return self.template.ids(self.conversation(system, messages))

    def decode(self, tokens: Sequence[int]) -> str:
        """Exact text, control tokens included."""
        ids = np.asarray(tokens, np.int64).tolist()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def spoken(self, tokens: Sequence[int]) -> str:
        """What the model says: its text without control tokens, reasoning blocks and channels."""
        said = without_thoughts(self.decode(tokens).rpartition(_FINAL)[2])
        return self.plain.control.sub("", said)


def without_thoughts(text: str) -> str:
    """`text` without its `<think>` blocks. One that the template opened is known by its end alone."""
    opened = _CLOSED in text and "<think>" not in text[: text.index(_CLOSED)]
    kept, place = [], 0
    for start, end in thinking(text, opened):
        kept.append(text[place:start])
        place = end
    return "".join([*kept, text[place:]])


def plain_voice_of(dialect: Dialect, agent: str, options: Mapping[str, Any] | None = None) -> Voice:
    """The same for formats that stand in the model's plain text. ConfigError for models that write in channels."""
    voice = voice_of(dialect, agent, options)
    if _CHANNEL in str(voice.tokenizer.chat_template):
        raise ConfigError(
            f"the agent {agent!r} reads plain text, and this model writes in channels (<|channel|>); use the agents "
            '"policy", "search-o1" or "webthinker", which speak its own dialect'
        )
    return voice


def voice_of(dialect: Dialect, agent: str, options: Mapping[str, Any] | None = None) -> Voice:
    """The voice of the model that speaks `dialect`; variables that its settings give the template go before `options`.

    `agent`: the method that asks, for the error. Raises ConfigError if the model has no chat template.
    """
    tokenizer = getattr(dialect, "tokenizer", None)
    compact = getattr(dialect, "style", "") == "compact"
    if tokenizer is None or compact or not tokenizer.chat_template:
        why = "this model knows no conversations" if compact else "this model has none"
        raise ConfigError(
            f"the agent {agent!r} prompts the model through its chat template, and {why}; use an instruction-tuned "
            'model, or the agent "policy"'
        )
    settings = getattr(dialect, "settings", None)
    own: dict[str, Any] = settings.template if settings is not None else {}
    date = settings.date if settings is not None else _DATE
    return Voice(tokenizer, {**(options or {}), **own}, date)
