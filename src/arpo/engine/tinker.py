"""An engine over the Tinker API: token ids go out through the SDK; ids and log-probs come back.

A segment ends by our own rules, looked up in the ids; the server is told of them so far as it can be. It takes ids *or*
strings to stop at. Ids are exact and stop early, but every token that may complete a stop string is among them, and
where one of them completed none the segment goes on by another request, with a seed of its own. Strings stop where they
should at most servers; SkyRL's JAX backend looks for them when all is generated. What was generated past the end is cut
off, which changes nothing of the distribution.

Log-probs are those at temperature 1 whatever the temperature was, and so are the trainer's: other temperatures, and
`top_p` < 1, are refused for training. "Weights" given to `publish` are the server's: see `TinkerService`.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.gate import Gate
from arpo.engine.retry import Breaker
from arpo.engine.settings import TinkerSettings
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Stopper
from arpo.engine.tinker_service import TinkerService
from arpo.engine.tinker_trouble import LostError
from arpo.engine.topk import midpoints
from arpo.errors import ConfigError, EngineError
from arpo.seeds import derive
from arpo.tree import Finish, Segment, Source

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


class TinkerEngine:
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
        self._tokenizer, self._settings, self.service = tokenizer, settings, service
        self._vocab_size = vocab_size or len(tokenizer)
        self._stopper = Stopper(self._decode, range(len(tokenizer)))
        self._end_tokens = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self._powers = settings.limits == "powers" or (settings.limits == "auto" and service.features.skyrl)
        self._gate, self._breaker = Gate(), Breaker(settings.breaker)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._sampler: Any = None
        self._version = 0
        self.stats = EngineStats()
        self._top_k, self.notes = self._find_top_k()
        self.capabilities = Capabilities(
            entropy="none" if settings.logprobs == "any" else "topk" if self._top_k else "sampled",
            top_k=self._top_k,
            weight_update=True,
            max_context=max_context or Capabilities().max_context,
        )

    @property
    def version(self) -> int:
        return self._version

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
        prefix = [int(token) for token in tokens]
        limit = min(params.max_tokens, self.capabilities.max_context - len(prefix))
        self._refuse(prefix, params, limit)
        async with self._gate.sampling():
            version, sampler = self._version, await self._ready()
            drawn, finish = await self._draw(sampler, prefix, params, seed, limit)
        return self._segment(prefix, drawn, finish, version)

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

    # --- one segment ---------------------------------------------------------------------------------------------

    def _refuse(self, prefix: Sequence[int], params: SampleParams, limit: int) -> None:
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; at least one token must be asked for")
        if not prefix:
            raise EngineError("an empty prefix cannot be continued; the prompt must hold at least one token")
        if limit < 1:
            raise EngineError(
                f"a prefix of {len(prefix)} tokens leaves no room in a context of {self.capabilities.max_context}; "
                "shorten the prompt or the tool results"
            )

    async def _ready(self) -> Any:
        """The sampler. Its places in the queue belong to the running event loop."""
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._slots = asyncio.get_running_loop(), asyncio.Semaphore(self._settings.concurrency)
        if self._sampler is None:
            self._sampler = await asyncio.to_thread(self.service.sampler, trained=False)
        return self._sampler

    async def _draw(
        self, sampler: Any, prefix: Sequence[int], params: SampleParams, seed: int, limit: int
    ) -> tuple[list["_Drawn"], Finish]:
        """Requests until the segment is over by our rules."""
        whole, end = list(prefix), len(prefix) + limit
        drawn: list[_Drawn] = []
        finish: Finish | None = None
        while finish is None:
            own = derive(seed, len(drawn)) if drawn else seed
            answer = await self._request(sampler, whole, params, end - len(whole), own)
            count, finish = self._stopper.cut(
                whole, answer.tokens[: end - len(whole)], params.end_tokens or self._end_tokens, params.stop
            )
            drawn.append(answer.first(count))
            if finish is None and len(whole) == end:
                finish = Finish.LENGTH
            if finish is None and not count:
                raise EngineError(
                    f"{self._settings.base_url} stops and returns no token: it leaves the token out at which it "
                    'stopped; set engine.stop = "strings"'
                )
        return drawn, finish

    async def _request(
        self, sampler: Any, whole: Sequence[int], params: SampleParams, limit: int, seed: int
    ) -> "_Drawn":
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
        options = {"topk_sample_logprobs": self._top_k} if self._top_k else {}
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
        ends = params.end_tokens or self._end_tokens
        ids = sorted({*ends, *self._stopper.may_end(params.stop)})
        if self._settings.stop == "tokens" or (self._settings.stop == "auto" and len(ids) <= _FEW):
            return ids
        return [*params.stop, *(self._decode([token]) for token in ends)]

    def _read(self, sequence: Any) -> "_Drawn":
        tokens, logprobs = [int(token) for token in sequence.tokens], sequence.logprobs
        if logprobs is None or len(logprobs) != len(tokens):
            raise EngineError(f"{self._settings.base_url} returned a sample without a log-prob for each token")
        top_TK = np.empty((len(tokens), 0))
        if self._top_k:
            top_TK = _table(sequence.topk_logprobs, len(tokens), self._top_k, self._settings.base_url)
        return _Drawn(tokens, np.array(logprobs, np.float32), top_TK)

    def _segment(self, prefix: Sequence[int], drawn: Sequence["_Drawn"], finish: Finish, version: int) -> Segment:
        tokens = np.array([token for part in drawn for token in part.tokens], np.int32)
        logprob_T = np.concatenate([part.logprob_T for part in drawn])
        entropy_T, slack_T = -logprob_T, np.empty(0, np.float32)
        if self._settings.logprobs == "any":
            entropy_T = np.zeros_like(logprob_T)
        elif self._top_k:
            entropy_T, slack_T = midpoints(np.concatenate([part.top_TK for part in drawn]), self._vocab_size)
        self.stats.calls += 1
        self.stats.prefix_tokens += len(prefix)
        self.stats.sampled_tokens += len(tokens)
        return Segment(
            tokens=tokens,
            source=Source.POLICY,
            logprobs=logprob_T,
            entropies=entropy_T,
            finish=finish,
            version=version,
            slacks=slack_T,
        )

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

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class _Drawn:
    """What one request brought: T tokens, their log-probs `[T]`, the K largest of each place `[T, K]`."""

    __slots__ = ("logprob_T", "tokens", "top_TK")

    def __init__(self, tokens: Sequence[int], logprob_T: np.ndarray, top_TK: np.ndarray) -> None:
        self.tokens, self.logprob_T, self.top_TK = tokens, logprob_T, top_TK

    def first(self, count: int) -> "_Drawn":
        return _Drawn(self.tokens[:count], self.logprob_T[:count], self.top_TK[:count])


def _table(top: Any, length: int, top_k: int, url: str) -> np.ndarray:
    """The log-probs of `(id, log-prob)` pairs as `[T, K]`, the K likeliest of each place."""
    if top is None or len(top) != length or any(not place or len(place) < top_k for place in top):
        raise EngineError(f"{url} returned a sample without the {top_k} top log-probs that were asked for")
    return np.array([sorted((logp for _, logp in place), reverse=True)[:top_k] for place in top], np.float64)
