"""From settings to an engine: one builder per `type`.

The modules are imported when they are asked for, because vLLM takes half a minute to import and a server needs no torch
model in this process.
"""

from typing import Any

from arpo.engine.base import Engine
from arpo.engine.settings import EngineSettings, LocalSettings, ModelSettings, OpenAISettings, TinkerSettings


def needs_module(settings: EngineSettings) -> bool:
    """True if the engine samples from the torch module of this process, so that it must be loaded even to sample."""
    return isinstance(settings, LocalSettings)


def build(
    settings: EngineSettings,
    model: ModelSettings,
    tokenizer: Any,
    module: Any | None,
    *,
    vocab_size: int | None = None,
    rank: int = 0,
    size: int = 1,
) -> Engine:
    """The engine that `settings` describe. `module`: the policy's own, or None where `needs_module` is False; for
    "tinker" the `TinkerService`.

    `vocab_size`: tokens in the policy's distribution, where it is known. `rank`, `size`: of the processes that train
    together; servers are dealt to them, and the first one publishes to all.
    Raises ArpoError, or EngineDownError where a server does not answer.
    """
    if isinstance(settings, LocalSettings):
        from arpo.engine.local import make_engine

        return make_engine(module, tokenizer, settings)
    if isinstance(settings, OpenAISettings):
        from arpo.engine.openai import OpenAIEngine
        from arpo.engine.publishing import dealt, server_publisher

        own = dealt(settings, rank, size)
        publisher = server_publisher(settings, first=rank == 0)
        return OpenAIEngine(tokenizer, own, vocab_size=vocab_size, publisher=publisher)
    if isinstance(settings, TinkerSettings):
        from arpo.engine.tinker import make_engine as make_tinker

        return make_tinker(module, tokenizer, settings, model.path, vocab_size=vocab_size)
    from arpo.engine.vllm import VllmEngine

    return VllmEngine(model, tokenizer, settings, module)
