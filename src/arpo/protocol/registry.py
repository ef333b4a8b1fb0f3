"""From settings to a dialect."""

from collections.abc import Sequence
from typing import Any

from arpo.protocol.base import Dialect, ToolSpec
from arpo.protocol.hermes import HermesDialect
from arpo.protocol.llama import LlamaDialect
from arpo.protocol.openai import OpenaiDialect
from arpo.protocol.qwen_xml import QwenXmlDialect
from arpo.protocol.settings import DialectSettings
from arpo.protocol.tags import TagsDialect

_CHAT = {dialect.name: dialect for dialect in (HermesDialect, QwenXmlDialect, LlamaDialect, OpenaiDialect)}


def build(settings: DialectSettings, tokenizer: Any, tools: Sequence[ToolSpec]) -> Dialect:
    """The dialect that `settings` names, for this tokenizer and these tools. Raises ConfigError if they do not fit."""
    if settings.type in _CHAT:
        return _CHAT[settings.type](tokenizer, tools, settings)
    style = settings.style
    if style == "auto":
        style = "compact" if tokenizer.init_kwargs.get("arpo_style") == "compact" else "full"
    return TagsDialect(tokenizer, tools, style)
