"""An engine that replays a script: the rollout's rules become unit-testable, with no model and no luck.

The script is a function of (prefix, seed), like a real policy's sample, so whatever order the scheduler asks in, equal
questions get equal answers. It honours `max_tokens`, stop strings and end tokens as a real engine does, and can answer
late, so that a test can shuffle the order of completion.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Decode, completes
from arpo.tree import Finish, Segment, Source


class Scripted(NamedTuple):
    """One scripted token with its log-prob and the entropy of the distribution that it came from (nats)."""

    token: int
    logprob: float = -0.1
    entropy: float = 0.1


Continuation = Callable[[tuple[int, ...], int], Sequence[Scripted]]
EVERYTHING = Capabilities(entropy="exact", prefix_reuse=True, weight_update=True)


class ScriptedEngine:
    """Continues a prefix by `continuation(prefix, seed)`, cut where a real engine would stop.

    `delay(prefix, seed)`: seconds before the answer. `end_tokens`: used where the params name none.
    `requests` records every call; `published` every version.
    """

    def __init__(
        self,
        continuation: Continuation,
        decode: Decode,
        *,
        end_tokens: Sequence[int] = (),
        capabilities: Capabilities = EVERYTHING,
        delay: Callable[[tuple[int, ...], int], float] | None = None,
    ) -> None:
        self._continuation = continuation
        self._decode = decode
        self._end_tokens = tuple(end_tokens)
        self._delay = delay
        self._version = 0
        self.capabilities = capabilities
        self.stats = EngineStats()
        self.requests: list[tuple[tuple[int, ...], SampleParams, int]] = []
        self.published: list[int] = []

    @property
    def version(self) -> int:
        return self._version

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """The script's continuation of `tokens`. Raises ValueError if the script ends before the segment does."""
        prefix = tuple(int(token) for token in tokens)
        self.requests.append((prefix, params, seed))
        version = self._version
        if self._delay is not None:
            await asyncio.sleep(self._delay(prefix, seed))
        script = self._continuation(prefix, seed)
        taken, finish = self._cut(prefix, script, params)
        self._count(prefix, taken)
        return Segment(
            tokens=np.array([step.token for step in taken], np.int32),
            source=Source.POLICY,
            logprobs=np.array([step.logprob for step in taken], np.float32),
            entropies=np.array([step.entropy for step in taken], np.float32),
            finish=finish,
            version=version,
        )

    async def publish(self, weights: Any, version: int) -> None:
        """Remember the version; a script has no weights."""
        self._version = version
        self.published.append(version)

    def save(self, folder: Path) -> None:
        """Write the version to `folder/scripted.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scripted.json").write_text(json.dumps({"version": self._version}))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        self._version = int(json.loads((folder / "scripted.json").read_text())["version"])

    async def close(self) -> None:
        """A script holds nothing."""

    def _cut(
        self, prefix: tuple[int, ...], script: Sequence[Scripted], params: SampleParams
    ) -> tuple[Sequence[Scripted], Finish]:
        ends = params.end_tokens or self._end_tokens
        tokens = list(prefix)
        for count, step in enumerate(script[: params.max_tokens], start=1):
            tokens.append(step.token)
            if step.token in ends:
                return script[:count], Finish.STOP
            if completes(self._decode, tokens, params.stop):
                return script[:count], Finish.CALL
        if len(script) < params.max_tokens:
            raise ValueError(
                f"the script for a prefix of {len(prefix)} tokens ends after {len(script)} tokens without an end token "
                f"or a stop string {params.stop}, and {params.max_tokens} are asked for"
            )
        return script[: params.max_tokens], Finish.LENGTH

    def _count(self, prefix: tuple[int, ...], taken: Sequence[Scripted]) -> None:
        self.stats.calls += 1
        self.stats.prefix_tokens += len(prefix)
        self.stats.sampled_tokens += len(taken)
