"""From settings to a dialect."""

from collections.abc import Sequence
from typing import Any

from arpo.protocol.base import ToolSpec
from arpo.protocol.settings import DialectSettings
from arpo.protocol.tags import TagsDialect


def build(settings: DialectSettings, tokenizer: Any, tools: Sequence[ToolSpec]) -> TagsDialect:
    """The dialect that `settings` names, for this tokenizer and these tools."""
    style = settings.style
    if style == "auto":
        style = "compact" if tokenizer.init_kwargs.get("arpo_style") == "compact" else "full"
    return TagsDialect(tokenizer, tools, style)
