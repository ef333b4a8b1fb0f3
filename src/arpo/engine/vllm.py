"""vLLM in this process: its scheduler and its kernels behind the engine contract.

Only token ids cross the border; vLLM has no tokenizer here and sees no text. A segment's end is found by our own rules
in the tokens as they arrive (end tokens are told to vLLM as well): vLLM's stop strings would miss one that a window has
cut in two, and both look for them on this side of vLLM's process border anyway. Whatever a request computes after
its end is dropped, at most a step or two.

Entropies are exact (`vllm_entropy.EntropySampler` in vLLM's workers), or brackets from the top-K log-probs where
vLLM samples in a way that the plug-in does not know.

A publication waits for what samples and keeps new requests out, so a segment has one version; then the weights are
loaded in place and the prefix cache is dropped (`publishing`). vLLM's core runs in a process of its own: if it dies,
everybody gets EngineDownError.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.gate import Gate
from arpo.engine.publishing import InProcessPublisher, WeightsFolder
from arpo.engine.settings import ModelSettings, VllmSettings
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Stopper, decoder
from arpo.engine.topk import midpoints
from arpo.engine.vllm_start import checkpoint, start
from arpo.engine.weights import ids_of
from arpo.errors import ConfigError, EngineDownError, EngineError
from arpo.tree import Finish, Segment, Source

_SEEDS = (1 << 63) - 1


@dataclass(slots=True)
class Drawn:
    """A segment as it arrives. `prefix`: tokens of its prefix, `cached` of which vLLM found in its cache."""

    prefix: int
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    others: list[list[float]] = field(default_factory=list)
    """Per token the entropy alone, or the log-probs that vLLM reports."""
    finish: Finish = Finish.NONE

    def add(self, token: int, reported: Mapping[int, Any], top_k: int) -> None:
        """`reported`: by id vLLM's log-probs, or ours and the entropy under an id that no token has."""
        values = {number: entry.logprob for number, entry in reported.items()}
        self.tokens.append(token)
        self.logprobs.append(values[token])
        if not top_k:
            del values[token]
        self.others.append(sorted(values.values(), reverse=True)[: top_k or 1])

    def over(self, finish: Finish) -> "Drawn":
        self.finish = finish
        return self

    def numbers(self, top_k: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-probs, entropies and slacks, float32 `[T]`; no slacks where entropies are exact."""
        logp_T = np.minimum(np.array(self.logprobs, np.float32), 0)
        if top_k:
            return logp_T, *midpoints(np.array(self.others), vocab_size)
        return logp_T, np.array(self.others, np.float32)[:, 0], np.empty(0, np.float32)


class VllmEngine:
    """Implements `arpo.engine.base.Engine`; see VllmSettings for the options."""

    def __init__(self, model: ModelSettings, tokenizer: Any, settings: VllmSettings, module: Any | None) -> None:
        """Starts vLLM and waits for it. ConfigError for settings that it does not take, EngineDownError if it fails.

        `module`: the policy's own torch module, or None where nothing trains here.
        """
        self._settings = settings
        self._folder = WeightsFolder(settings.publish_folder)
        try:
            self._source = checkpoint(model, module, tokenizer, self._folder)
            self._llm = start(self._source, model, settings)
        except BaseException:
            self._folder.close()
            raise
        config = self._llm.vllm_config.model_config
        self._folder.config = config.hf_config
        self._vocab_size = int(config.get_vocab_size())
        self._stopper = Stopper(decoder(tokenizer), range(len(tokenizer)))
        self._ends = _end_tokens(config, tokenizer)
        self._publisher = InProcessPublisher(self._llm, self._folder)
        self._prepared: asyncio.Task[None] | None = None
        self._gate, self._numbers = Gate(), itertools.count()
        self._version = 0
        self._closed = False
        self.stats = EngineStats()
        exact = settings.entropy == "exact"
        self.capabilities = Capabilities(
            entropy="exact" if exact else "topk",
            top_k=0 if exact else settings.top_k,
            prefix_reuse=True,
            weight_update=True,
            max_context=int(config.max_model_len),
        )

    @property
    def version(self) -> int:
        return self._version

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens`; ends with LENGTH at `max_tokens` or at the end of the context.

        Raises EngineError for a prefix that does not fit and ConfigError for `top_p` < 1 without exact entropies.
        Cancelling the call aborts the request in vLLM.
        """
        prefix = [int(token) for token in tokens]
        self._check(prefix, params)
        await self._ready()
        async with self._gate.sampling():
            version = self._version
            with _translated():
                drawn = await self._draw(prefix, params, seed)
        return self._segment(drawn, version)

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from `weights` (a module, adapters merged, or a state dict) from now on.

        Running segments end on the old weights first. ArpoError if the weights do not fit, EngineDownError if vLLM does
        not take them.
        """
        await self._ready()
        async with self._gate.alone():
            await self._publisher.publish(weights, version)
            self._version = version

    def save(self, folder: Path) -> None:
        """vLLM keeps weights in a layout of its own. Raises EngineError."""
        raise EngineError("vLLM does not write weights; save the module that was published")

    def load(self, folder: Path) -> None:
        """Raises EngineError."""
        raise EngineError(f"vLLM takes weights by publish: load {folder} and publish the module")

    async def close(self) -> None:
        """End vLLM's processes; requests that run fail with EngineDownError."""
        if not self._closed:
            self._closed = True
            self._llm.shutdown()
            self._folder.close()

    # --- requests ------------------------------------------------------------------------------------------------

    def _check(self, prefix: Sequence[int], params: SampleParams) -> None:
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; at least one token must be asked for")
        if not prefix:
            raise EngineError("an empty prefix cannot be continued; the prompt must hold at least one token")
        if len(prefix) >= self.capabilities.max_context:
            raise EngineError(
                f"a prefix of {len(prefix)} tokens leaves no room in the context of {self.capabilities.max_context}; "
                "shorten the prompt or the tool results, or raise engine.max_context"
            )
        if min(prefix) < 0 or max(prefix) >= self._vocab_size:
            raise EngineError(
                f"the prefix holds token ids from {min(prefix)} to {max(prefix)}, the model knows 0 to "
                f"{self._vocab_size - 1}; it was encoded by another tokenizer"
            )
        if params.top_p < 1 and params.temperature > 0 and self.capabilities.entropy != "exact":
            raise ConfigError(
                f"with engine.entropy = {self._settings.entropy!r} vLLM reports log-probs after top_p = "
                f'{params.top_p:g} has cut the distribution; set top_p = 1, or engine.entropy = "exact"'
            )

    async def _ready(self) -> None:
        """Before the first request: tie vLLM to this event loop and put the plug-in into its workers."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise EngineDownError("the engine is closed")
        if self._prepared is None:
            self._prepared = loop.create_task(self._install())
        if self._prepared.get_loop() is not loop:
            raise EngineError("vLLM belongs to the event loop that used it first; build another engine for this one")
        await asyncio.shield(self._prepared)

    async def _install(self) -> None:
        if self.capabilities.entropy != "exact":
            return
        with _translated():
            reasons = await self._llm.collective_rpc("arpo_report_entropies", args=(True,))
        if any(reasons):
            raise ConfigError(
                f"this vLLM cannot report exact entropies ({next(filter(None, reasons))}); set engine.entropy "
                '= "topk", or VLLM_USE_V2_MODEL_RUNNER=0 in the environment'
            )

    async def _draw(self, prefix: list[int], params: SampleParams, seed: int) -> Drawn:
        limit = min(params.max_tokens, self.capabilities.max_context - len(prefix))
        ends = frozenset(params.end_tokens) or self._ends
        halting, whole, drawn = self._stopper.may_end(params.stop), list(prefix), Drawn(len(prefix))
        sampling = self._sampling(params, seed, limit, ends)
        name = f"arpo-{next(self._numbers)}"
        # Leaving the block before the end aborts the request.
        async with aclosing(
            self._llm.generate({"type": "token", "prompt_token_ids": prefix}, sampling, name)
        ) as outputs:
            async for output in outputs:
                drawn.cached = output.num_cached_tokens or drawn.cached
                for token, reported in zip(output.outputs[0].token_ids, output.outputs[0].logprobs or (), strict=True):
                    whole.append(token)
                    drawn.add(token, reported, self.capabilities.top_k)
                    if token in ends:
                        return drawn.over(Finish.STOP)
                    if token in halting and self._stopper.ended(whole, params.stop):
                        return drawn.over(Finish.CALL)
        if len(drawn.tokens) < limit:
            raise EngineError(f"vLLM gave up request {name} after {len(drawn.tokens)} of {limit} tokens")
        return drawn.over(Finish.LENGTH)

    def _sampling(self, params: SampleParams, seed: int, limit: int, ends: frozenset[int]) -> Any:
        vllm = import_module("vllm.sampling_params")
        return vllm.SamplingParams(
            max_tokens=limit,
            temperature=params.temperature,
            top_p=params.top_p if params.temperature > 0 else 1.0,
            seed=seed & _SEEDS,
            logprobs=self.capabilities.top_k or 1,
            stop_token_ids=sorted(ends),
            ignore_eos=True,
            detokenize=False,
            output_kind=vllm.RequestOutputKind.DELTA,
        )

    def _segment(self, drawn: Drawn, version: int) -> Segment:
        self._count(drawn)
        logp_T, entropy_T, slack_T = drawn.numbers(self.capabilities.top_k, self._vocab_size)
        if not (np.isfinite(logp_T).all() and np.isfinite(entropy_T).all()):
            raise EngineDownError("vLLM's log-probs hold NaN; the weights are broken (lower the learning rate?)")
        return Segment(
            tokens=np.array(drawn.tokens, np.int32),
            source=Source.POLICY,
            logprobs=logp_T,
            entropies=entropy_T,
            finish=drawn.finish,
            version=version,
            slacks=slack_T,
        )

    def _count(self, drawn: Drawn) -> None:
        stats, computed = self.stats, drawn.prefix - drawn.cached
        stats.calls += 1
        stats.prefix_tokens += drawn.prefix
        stats.sampled_tokens += len(drawn.tokens)
        stats.reused_tokens += drawn.cached
        stats.prefilled_tokens += computed
        # The last token of a segment is not computed until somebody continues it.
        stats.computed_tokens += computed + len(drawn.tokens) - 1


@contextmanager
def _translated() -> Iterator[None]:
    """vLLM's errors in our words."""
    vllm = import_module("vllm.v1.engine.exceptions")
    try:
        yield
    except vllm.EngineDeadError as error:
        raise EngineDownError("vLLM's engine process has died; its own log says why") from error
    except (vllm.EngineGenerateError, ValueError) as error:
        raise EngineError(f"vLLM refused a request: {error or error.__cause__}") from error


def _end_tokens(config: Any, tokenizer: Any) -> frozenset[int]:
    """End-of-sequence ids of the generation config, the model's config and the tokenizer."""
    generation = config.try_get_generation_config() or {}
    return ids_of(generation.get("eos_token_id"), config.hf_text_config.eos_token_id, tokenizer.eos_token_id)
