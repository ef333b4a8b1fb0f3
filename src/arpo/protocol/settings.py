"""Which dialect a run speaks."""

from typing import Literal

from arpo.settings import Frozen


class DialectSettings(Frozen):
    """`style`: "full" for chat models (system prompt, chat template), "compact" for the pocket policy; "auto": compact
    if and only if the tokenizer says so (`arpo_style`)."""

    type: Literal["tags"] = "tags"
    style: Literal["auto", "full", "compact"] = "auto"
