"""The engine contract: token ids in; token ids, log-probs and entropies out.

The rollout always passes whole token prefixes; reusing what was computed before is the engine's job. What an engine
cannot do it says in `capabilities`, and a rollout that needs it fails at start-up: there are no silent no-ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arpo.engine.stats import EngineStats
from arpo.tree import Segment


@dataclass(frozen=True, slots=True)
class SampleParams:
    """How to sample one segment.

    `max_tokens`: new tokens at the most (>= 1). `stop`: strings of which the first one completed ends the segment, the
    token that completed it included. `temperature` 0 is greedy (log-probs and entropies are then those at
    temperature 1). `end_tokens`: ids that end the turn; empty means the engine's own end-of-sequence ids.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    end_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. `entropy`: "exact", "topk", "sampled" or "none"; `top_k` with "topk"."""

    entropy: str = "none"
    top_k: int = 0
    prefix_reuse: bool = False
    weight_update: bool = False
    max_context: int = 1 << 30


class Engine(Protocol):
    """Six verbs. `sample` is safe to call concurrently from one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Running totals of what was asked and computed; counters that the engine cannot know stay 0."""
        ...

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens` by one policy segment (parent -1, to be placed by the rollout).

        `segment.logprobs` and `segment.entropies` are float32 `[T]` at the sampling temperature; `finish` is STOP (end
        token sampled, included), CALL (a stop string completed) or LENGTH. With "topk" entropies are the midpoints of
        brackets of half-width `segment.slacks`. Raises EngineError if this request failed, EngineDownError if every
        further one would.
        """
        ...

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from `weights` (a module or a state dict) from now on; older cached prefixes are dropped."""
        ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    async def close(self) -> None:
        """Release connections and processes. The engine samples no more."""
        ...
