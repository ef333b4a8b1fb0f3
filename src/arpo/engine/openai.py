"""An engine behind a server: token ids go out over HTTP; ids, log-probs and entropy brackets come back.

The contract is the local engine's, so what a server understands otherwise is mended here and never re-tokenised. A
segment ends by our own rules, looked up in the ids: at an end token, or at the token that completes a stop string. The
server is told of both, but it looks for stop strings in the *new* text only. Where the prefix ends within one (a window
may have cut it in two) so few tokens are asked for first as could complete it. Where the server stops for a reason that
is none of ours (its model's own end token, an accidental match) the segment is continued by another request, from there
and with a seed of its own: a pause does not change what is sampled from.

Log-probs must be those of the whole distribution at the sampling temperature. The start-up probe finds out what the
server gives; sampling that it does not fit is refused (see `check`). Weights are pushed by a `Publisher`; without one
this engine samples from what the server was started with, and says so.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.completions import Answer, Ask, Completions, Generate, MalformedError, fold, read
from arpo.engine.gate import Gate
from arpo.engine.http import Server
from arpo.engine.probe import inspect
from arpo.engine.settings import OpenAISettings
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Stopper
from arpo.engine.topk import midpoints
from arpo.errors import ConfigError, EngineError
from arpo.retry import Clock
from arpo.seeds import derive
from arpo.tree import Finish, Segment, Source

if TYPE_CHECKING:
    from arpo.engine.publishing import Publisher


class OpenAIEngine:
    """Implements `arpo.engine.base.Engine`; see OpenAISettings for the options."""

    def __init__(
        self,
        tokenizer: Any,
        settings: OpenAISettings,
        *,
        vocab_size: int | None = None,
        publisher: "Publisher | None" = None,
        clock: Clock | None = None,
    ) -> None:
        """Asks the server what it can do. EngineDownError if it does not answer, ConfigError if it cannot be used.

        `vocab_size`: of the model, where it is known; `settings.vocab_size` goes first.
        """
        self._tokenizer, self._settings, self._publisher = tokenizer, settings, publisher
        self._vocab_size = settings.vocab_size or vocab_size or len(tokenizer)
        self._wire = Generate() if settings.api == "sglang" else Completions()
        self._server = Server(
            self._wire.root(settings.base_url),
            key_variable=settings.key_variable,
            concurrency=settings.concurrency,
            timeout=settings.timeout,
            retries=settings.retries,
            breaker=settings.breaker,
            clock=clock,
        )
        self._served = inspect(self._server, self._wire, settings, len(tokenizer))
        self._stopper = Stopper(self._decode, range(len(tokenizer)))
        self._end_tokens = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self._gate = Gate()
        self._version = 0
        self.stats = EngineStats()
        self._top_k = settings.top_k if settings.logprobs == "whole" else 0
        self.capabilities = Capabilities(
            entropy="none" if settings.logprobs == "any" else "topk" if self._top_k else "sampled",
            top_k=self._top_k,
            weight_update=publisher is not None,
            max_context=self._served.max_context,
        )

    @property
    def version(self) -> int:
        return self._version

    def check(self, params: SampleParams) -> None:
        """ConfigError if the server's log-probs would not be those of the whole distribution at this temperature.

        Greedy sampling and temperature 1 without truncation fit every server, and everything does where nobody reads
        them (`logprobs = "any"`).
        """
        if params.temperature == 0 or self._settings.logprobs == "any":
            return
        if params.temperature != 1 and not self._served.processed:
            raise ConfigError(
                f"{self._settings.base_url} reports log-probs at temperature 1 and the policy is sampled at "
                f"{params.temperature:g}: start the server with processed ones (vLLM: --logprobs-mode "
                "processed_logprobs), or sample at temperature 1"
            )
        if params.top_p < 1 and self._served.truncated:
            raise ConfigError(
                f"{self._settings.base_url} reports log-probs after top_p = {params.top_p:g} has cut the distribution, "
                "and those of the whole one cannot be had back; set top_p = 1, or (at temperature 1) start the server "
                "with raw ones (vLLM: --logprobs-mode raw_logprobs)"
            )

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens`; ends with LENGTH at `max_tokens` or at the end of the context.

        Raises EngineError for a prefix that does not fit or a request that failed in spite of its retries,
        EngineDownError if the server is gone, ConfigError as `check` does. Cancelling it cancels the request.
        """
        self.check(params)
        prefix = [int(token) for token in tokens]
        limit = min(params.max_tokens, self._served.max_context - len(prefix))
        self._refuse(prefix, params, limit)
        async with self._gate.sampling():
            version = self._version
            answers, finish = await self._draw(prefix, params, seed, limit)
        return self._segment(prefix, answers, finish, version)

    async def publish(self, weights: Any, version: int) -> None:
        """Hand `weights` to the publisher once nothing samples; what is asked meanwhile waits for them.

        Without a publisher only the version that the server already has may be named: ConfigError otherwise.
        """
        if self._publisher is None:
            if version != self._version:
                raise ConfigError(
                    f"{self._settings.base_url} samples from the weights that it was started with (version "
                    f"{self._version}), and nothing says how to send it version {version}; set engine.publish, or "
                    'train with engine.type = "local" or "vllm"'
                )
            return
        async with self._gate.alone():
            await self._publisher.publish(weights, version)
            self._version = version

    def save(self, folder: Path) -> None:
        """The weights are the server's. Raises EngineError."""
        raise EngineError(f"the weights are those of {self._settings.base_url}; save them where they are trained")

    def load(self, folder: Path) -> None:
        """The weights are the server's. Raises EngineError."""
        raise EngineError(f"{self._settings.base_url} loads its own weights; start it with {folder}")

    async def close(self) -> None:
        """Close all connections."""
        await self._server.close()

    # --- one segment ---------------------------------------------------------------------------------------------

    def _refuse(self, prefix: Sequence[int], params: SampleParams, limit: int) -> None:
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; at least one token must be asked for")
        if not prefix:
            raise EngineError("an empty prefix cannot be continued; the prompt must hold at least one token")
        if limit < 1:
            raise EngineError(
                f"a prefix of {len(prefix)} tokens leaves no room in the server's context of "
                f"{self._served.max_context}; shorten the prompt or the tool results"
            )

    async def _draw(
        self, prefix: Sequence[int], params: SampleParams, seed: int, limit: int
    ) -> tuple[list[Answer], Finish]:
        """Requests until the segment is over by our rules; one, but for the cases in the module's docstring."""
        whole, end = list(prefix), len(prefix) + limit
        answers: list[Answer] = []
        finish: Finish | None = None
        while finish is None:
            few = self._stopper.to_complete(whole, params.stop)
            ask = self._ask(whole, params, min(few or limit, end - len(whole)), seed, len(answers))
            answer = await self._request(ask)
            count, finish = self._stopper.cut(whole, answer.tokens, params.end_tokens or self._end_tokens, params.stop)
            answers.append(_first(answer, count))
            if finish is None and len(whole) == end:
                finish = Finish.LENGTH
        return answers, finish

    def _ask(self, whole: Sequence[int], params: SampleParams, max_tokens: int, seed: int, number: int) -> Ask:
        return Ask(
            tuple(whole),
            max_tokens,
            params.temperature,
            params.top_p,
            params.stop,
            params.end_tokens or self._end_tokens,
            fold(derive(seed, number) if number else seed),
            self._top_k,
        )

    async def _request(self, ask: Ask) -> Answer:
        def answered(reply: Any) -> Answer:
            try:
                return read(self._wire, reply, ask)
            except MalformedError as error:
                raise EngineError(f"{self._settings.base_url}: {self._server.without_key(str(error))}") from error

        answer = await self._server.post(self._wire.samples, self._wire.body(self._served.model, ask), answered)
        self._count(ask, answer)
        return answer

    def _segment(self, prefix: Sequence[int], answers: Sequence[Answer], finish: Finish, version: int) -> Segment:
        tokens = np.array([token for answer in answers for token in answer.tokens], np.int32)
        logprob_T = np.concatenate([answer.logprob_T for answer in answers]).astype(np.float32)
        entropy_T, slack_T = -logprob_T, np.empty(0, np.float32)
        if self._settings.logprobs == "any":
            entropy_T = np.zeros_like(logprob_T)
        elif self._top_k:
            entropy_T, slack_T = midpoints(np.concatenate([answer.top_TK for answer in answers]), self._vocab_size)
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

    def _count(self, ask: Ask, answer: Answer) -> None:
        """What the server computed, if it says: what of the prefix it had to, and each new token but the last."""
        if answer.cached is not None:
            fresh = len(ask.tokens) - answer.cached
            self.stats.reused_tokens += answer.cached
            self.stats.prefilled_tokens += fresh
            self.stats.computed_tokens += fresh + len(answer.tokens) - 1

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _first(answer: Answer, count: int) -> Answer:
    return Answer(answer.tokens[:count], answer.logprob_T[:count], answer.top_TK[:count], answer.stopped, answer.cached)
