"""What an engine has done so far: the counters behind tokens per second and the worth of prefix reuse."""

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Running totals; set a fresh one on the engine to start a new measurement.

    A call's prefix is `prefilled_tokens` (computed for it) plus `reused_tokens` (found in the cache). A sequence that
    was evicted while it ran counts its recomputation as prefilled, so the sum may exceed `prefix_tokens`.
    """

    calls: int = 0
    prefix_tokens: int = 0
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    """Token positions that went through the model: prefill without its padding, and one per row and decoding step."""
    steps: int = 0
    seconds: float = 0.0
    """Time spent inside steps (computing), waiting for tools excluded."""
