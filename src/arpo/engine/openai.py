"""An engine behind a server: token ids go out over HTTP; ids, log-probs and entropy brackets come back.

The contract is the local engine's, so what a server understands otherwise is mended here and never re-tokenised
(`served`). It is told of end tokens and stop strings.

Log-probs must be those of the whole distribution at the sampling temperature. The start-up probe finds out what the
server gives; sampling that it does not fit is refused (see `check`). Weights are pushed by a `Publisher`; without one
this engine samples from what the server was started with, and says so.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.completions import Ask, Completions, Generate, MalformedError, fold, read
from arpo.engine.gate import Gate
from arpo.engine.http import Server
from arpo.engine.probe import inspect
from arpo.engine.served import Answer, ServedEngine
from arpo.engine.settings import OpenAISettings
from arpo.errors import ConfigError, EngineError
from arpo.retry import Clock
from arpo.tree import Segment

if TYPE_CHECKING:
    from arpo.engine.publishing import Publisher


class OpenAIEngine(ServedEngine):
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
        super().__init__(tokenizer, settings.vocab_size or vocab_size)
        self._settings, self._publisher = settings, publisher
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
        self._gate = Gate()
        top_k = settings.top_k if settings.logprobs == "whole" else 0
        self.capabilities = Capabilities(
            entropy="none" if settings.logprobs == "any" else "topk" if top_k else "sampled",
            top_k=top_k,
            weight_update=publisher is not None,
            max_context=self._served.max_context,
        )

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
        async with self._gate.sampling():
            return await self._segment(tokens, params, seed, partial(self._request, params))

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

    # --- one request ---------------------------------------------------------------------------------------------

    async def _request(self, params: SampleParams, whole: Sequence[int], limit: int, seed: int) -> Answer:
        ask = Ask(
            tuple(whole),
            self._asked(whole, params, limit),
            params.temperature,
            params.top_p,
            params.stop,
            self._ends(params),
            fold(seed),
            self.capabilities.top_k,
        )

        def answered(reply: Any) -> Answer:
            try:
                return read(self._wire, reply, ask)
            except MalformedError as error:
                raise EngineError(f"{self._settings.base_url}: {self._server.without_key(str(error))}") from error

        return await self._server.post(self._wire.samples, self._wire.body(self._served.model, ask), answered)
