"""An engine over the Tinker API: token ids go out through the SDK; ids and log-probs come back.

A segment ends by our own rules (`served`); the server is told of them so far as it can be. It takes ids *or* strings to
stop at. Ids are exact and stop early, but every token that may complete a stop string is among them, and where one of
them completed none the segment goes on by another request. Strings stop where they should at most servers; SkyRL's JAX
backend looks for them when all is generated.

Log-probs are those at temperature 1 whatever the temperature was, and so are the trainer's: other temperatures, and
`top_p` < 1, are refused for training. "Weights" given to `publish` are the server's: see `TinkerService`.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.gate import Gate
from arpo.engine.retry import Breaker
from arpo.engine.served import Answer, ServedEngine
from arpo.engine.settings import TinkerSettings
from arpo.engine.tinker_service import TinkerService
from arpo.engine.tinker_trouble import LostError
from arpo.errors import ConfigError, EngineError
from arpo.tree import Segment

_FEW = 64
"""With stop = "auto" no more ids than this are sent to stop at."""


def make_engine(
    service: Any, tokenizer: Any, settings: TinkerSettings, model_path: str, *, vocab_size: int | None = None
) -> "TinkerEngine":
    """The engine over a `TinkerService`. `model_path`: where the base model's own configuration names its context."""
    from arpo.engine.models import load_skeleton

    context = settings.max_context or service.features.models.get(service.base_model)
    if context is None:
        config = load_skeleton(model_path).config.get_text_config()
        context = getattr(config, "max_position_embeddings", None)
    return TinkerEngine(tokenizer, settings, service, vocab_size=vocab_size, max_context=context)


class TinkerEngine(ServedEngine):
    """Implements `arpo.engine.base.Engine`; see TinkerSettings for the options.

    `vocab_size`: tokens in the model's distribution. `max_context`: the longest sequence; None: no limit. `notes`:
    what a user should hear of once, before a run.
    """

    def __init__(
        self,
        tokenizer: Any,
        settings: TinkerSettings,
        service: TinkerService,
        *,
        vocab_size: int | None = None,
        max_context: int | None = None,
    ) -> None:
        super().__init__(tokenizer, vocab_size)
        self._settings, self.service = settings, service
        self._powers = settings.limits == "powers" or (settings.limits == "auto" and service.features.skyrl)
        self._gate, self._breaker = Gate(), Breaker(settings.breaker)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._sampler: Any = None
        top_k, self.notes = self._find_top_k()
        self.capabilities = Capabilities(
            entropy="none" if settings.logprobs == "any" else "topk" if top_k else "sampled",
            top_k=top_k,
            weight_update=True,
            max_context=max_context or Capabilities().max_context,
        )

    def check(self, params: SampleParams) -> None:
        """ConfigError for sampling whose log-probs would not be those that the trainer counts with."""
        if self._settings.logprobs == "any":
            return
        if params.temperature not in (0, 1):
            raise ConfigError(
                f"rollout.temperature = {params.temperature:g}: a Tinker server reports log-probs, and trains, at "
                "temperature 1 whatever it sampled at, so no importance ratio would be right; set it to 1"
            )
        if params.top_p < 1 and params.temperature:
            raise ConfigError(
                f"rollout.top_p = {params.top_p:g}: whether a Tinker server's log-probs are those before or after the "
                "cut is nowhere said; set it to 1"
            )

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens`; ends with LENGTH at `max_tokens` or at the end of the context.

        Raises EngineError for a request that failed in spite of its retries, EngineDownError if the server is gone,
        ConfigError as `check` does.
        """
        self.check(params)
        async with self._gate.sampling():
            request = partial(self._request, await self._ready(), params)
            return await self._segment(tokens, params, seed, request)

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from the trained model as it is now. `weights`: this engine's own TinkerService."""
        if weights is not self.service:
            raise ConfigError("a Tinker server samples from the weights that it trains itself; give it those")
        async with self._gate.alone():
            self._sampler = await asyncio.to_thread(self.service.sampler, trained=True)
            self._version = version

    def save(self, folder: Path) -> None:
        """The weights are the server's; the learner's checkpoint names them. Raises EngineError."""
        raise EngineError(f"the weights are those of {self._settings.base_url}; the learner saves them there")

    def load(self, folder: Path) -> None:
        """As `save`."""
        raise EngineError(f"the weights are those of {self._settings.base_url}; the learner loads them there")

    async def close(self) -> None:
        """Nothing is held open but the SDK's own threads, which end with the process."""

    # --- one request ---------------------------------------------------------------------------------------------

    async def _ready(self) -> Any:
        """The sampler. Its places in the queue belong to the running event loop."""
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._slots = asyncio.get_running_loop(), asyncio.Semaphore(self._settings.concurrency)
        if self._sampler is None:
            self._sampler = await asyncio.to_thread(self.service.sampler, trained=False)
        return self._sampler

    async def _request(self, sampler: Any, params: SampleParams, whole: Sequence[int], limit: int, seed: int) -> Answer:
        """One sample, asked for again if the server lost it."""
        for attempt in range(self._settings.retries + 1):
            try:
                async with self._slots:
                    with self._breaker.request():
                        return self._read(await self._ask(sampler, whole, params, limit, seed))
            except LostError:
                if attempt == self._settings.retries:
                    raise
        raise AssertionError("the last try either answers or raises")

    async def _ask(self, sampler: Any, whole: Sequence[int], params: SampleParams, limit: int, seed: int) -> Any:
        types = self.service.sdk.types
        top_k = self.capabilities.top_k
        options = {"topk_sample_logprobs": top_k} if top_k else {}
        future = sampler.sample(
            prompt=self.service.prompt(whole),
            num_samples=1,
            sampling_params=types.SamplingParams(
                max_tokens=self._rounded(limit, len(whole)),
                seed=seed & 0x7FFFFFFF,
                temperature=params.temperature,
                top_p=params.top_p,
                stop=self._stops(params) or None,
            ),
            **options,
        )
        return (await self.service.waiter.answer("sample", future)).sequences[0]

    def _rounded(self, limit: int, length: int) -> int:
        if not self._powers:
            return limit
        return max(limit, min(1 << (limit - 1).bit_length(), self.capabilities.max_context - length))

    def _stops(self, params: SampleParams) -> list[int] | list[str]:
        ends = self._ends(params)
        ids = sorted({*ends, *self._stopper.may_end(params.stop)})
        if self._settings.stop == "tokens" or (self._settings.stop == "auto" and len(ids) <= _FEW):
            return ids
        return [*params.stop, *(self._decode([token]) for token in ends)]

    def _read(self, sequence: Any) -> Answer:
        tokens, logprobs = [int(token) for token in sequence.tokens], sequence.logprobs
        if not tokens:
            raise EngineError(
                f"{self._settings.base_url} stops and returns no token: it leaves the token out at which it stopped; "
                'set engine.stop = "strings"'
            )
        if logprobs is None or len(logprobs) != len(tokens):
            raise EngineError(f"{self._settings.base_url} returned a sample without a log-prob for each token")
        top_TK = np.empty((len(tokens), 0))
        if self.capabilities.top_k:
            top_TK = _table(sequence.topk_logprobs, len(tokens), self.capabilities.top_k, self._settings.base_url)
        return Answer(tokens, np.array(logprobs, np.float32), top_TK)

    def _find_top_k(self) -> tuple[int, tuple[str, ...]]:
        """How many log-probs to ask for, and what to say if that is not what was wanted."""
        settings, service = self._settings, self.service
        if not settings.top_k or settings.logprobs == "any":
            return 0, ()
        if not service.features.top_k:
            who = "this server gives no top log-probs of sampled tokens"
        elif not service.asks_top_k(service.base):
            who = f"the SDK tinker {service.sdk_version} cannot ask for top log-probs of sampled tokens"
        else:
            return settings.top_k, ()
        return 0, (f"{who}, so entropies are estimated by minus the log-prob of each sampled token",)


def _table(top: Any, length: int, top_k: int, url: str) -> np.ndarray:
    """The log-probs of `(id, log-prob)` pairs as `[T, K]`, the K likeliest of each place."""
    if top is None or len(top) != length or any(not place or len(place) < top_k for place in top):
        raise EngineError(f"{url} returned a sample without the {top_k} top log-probs that were asked for")
    return np.array([sorted((logp for _, logp in place), reverse=True)[:top_k] for place in top], np.float64)
