"""vLLM in this process."""

from typing import Any

from arpo.engine.settings import ModelSettings, VllmSettings


class VllmEngine:
    def __init__(self, model: ModelSettings, tokenizer: Any, settings: VllmSettings, module: Any | None) -> None:
        raise NotImplementedError
