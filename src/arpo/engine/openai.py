"""An engine behind the OpenAI completions protocol."""

from typing import Any

from arpo.engine.settings import OpenAISettings


class OpenAIEngine:
    def __init__(self, tokenizer: Any, settings: OpenAISettings) -> None:
        raise NotImplementedError
