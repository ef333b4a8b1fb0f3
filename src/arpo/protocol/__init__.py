"""Between text and calls: dialects read what the policy sampled and render everything else as token ids."""

from arpo.protocol.base import Call, Dialect, ParseCode, ParseResult, ToolSpec

__all__ = ["Call", "Dialect", "ParseCode", "ParseResult", "ToolSpec"]
