"""Sampling from a transformers model on this machine: an async engine around a synchronous step loop.

One asyncio task steps while work is pending and yields to the event loop after every step, so tool calls and new
requests are served between two tokens. There are no threads: what runs together is a function of the order of arrival
alone, and every token's draw is a function of its path's seed, so a run repeats itself.

A version of the weights holds for whole segments: `publish` lets the running ones end and keeps the waiting ones back
until the new weights are in. The engine may share its module with a learner, who changes it in place; publishing the
same module then costs a version number and the cached prefixes. Nothing may be sampled between the change and its
publication.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.batching import Batcher
from arpo.engine.fused import FusedForward, can_fuse
from arpo.engine.kv import PAGE, PageStore
from arpo.engine.lora import is_adapted, load_adapter, save_weights
from arpo.engine.models import load_policy
from arpo.engine.passes import Passes
from arpo.engine.rows import Row, frozen
from arpo.engine.settings import LocalSettings
from arpo.engine.slots import Slots
from arpo.engine.stats import EngineStats
from arpo.engine.stock import Forward, StockForward
from arpo.engine.stopping import Stopper, decoder
from arpo.engine.weights import check_state, context_of, end_tokens_of, state_of
from arpo.errors import ArpoError
from arpo.tree import Finish, Segment

_SMALL = 32_000_000
"""Parameters below which a second copy of the weights is cheap and the fused pass pays."""
_SLOTS_PER_ROW = 4
"""Sequences remembered per sequence that may run at once."""
_MASK = (1 << 64) - 1


def make_engine(model: Any, tokenizer: Any, settings: LocalSettings) -> "LocalEngine":
    """The engine that the settings describe."""
    return LocalEngine(model, tokenizer, **settings.model_dump(exclude={"type"}))


class LocalEngine:
    """Implements `arpo.engine.base.Engine` for a causal LM and its tokenizer; see LocalSettings for the options."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 256,
        max_cached_tokens: int = 1 << 18,
        prefill_tokens: int = 4096,
        max_context: int | None = None,
        prefix_reuse: bool = True,
        fused: bool | None = None,
        entropy: Literal["exact", "none"] = "exact",
    ) -> None:
        """Raises ArpoError if the model's layers cannot be cached this way."""
        self._model, self._tokenizer = model, tokenizer
        self._context = context_of(model, max_context, max_cached_tokens // PAGE * PAGE)
        self._store = PageStore(model.device, model.dtype, max_cached_tokens // PAGE)
        self._slots = Slots(self._store, _SLOTS_PER_ROW * max_batch)
        self._stopper = Stopper(decoder(tokenizer), range(len(tokenizer)))
        self._forward = self._pick_forward(fused)
        self._batcher = Batcher(
            Passes(self._forward, self._slots),
            self._slots,
            self._stopper,
            max_batch=max_batch,
            prefill_tokens=prefill_tokens,
            prefix_reuse=prefix_reuse,
            entropy=entropy == "exact",
        )
        self._end_tokens = end_tokens_of(model, tokenizer)
        self._vocabulary = model.get_input_embeddings().weight.shape[0]
        self._version = 0
        self._task: asyncio.Task[None] | None = None
        self._drained: list[asyncio.Future[None]] = []
        self.capabilities = Capabilities(
            entropy=entropy, prefix_reuse=prefix_reuse, weight_update=True, max_context=self._context
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was built or `stats` was last set."""
        return self._batcher.stats

    @stats.setter
    def stats(self, stats: EngineStats) -> None:
        self._batcher.stats = stats

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens`; ends with LENGTH at `max_tokens` or at the end of the context.

        Raises ArpoError for a prefix that is empty, does not fit the context or holds ids outside the vocabulary.
        Cancelling the call frees its place at once.
        """
        row = self._row(tokens, params, seed)
        self._batcher.waiting.append(row)
        self._wake()
        try:
            return await row.future
        except asyncio.CancelledError:
            self._batcher.remove(row)
            raise

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from `weights` from now on: a state dict, another module (copied), or this engine's own module.

        Of a module with an adapter an engine without one takes the merged weights. Running segments end on the old
        weights first. Raises ArpoError if the weights do not fit.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drained.append(done)
        try:
            if self._batcher.running:
                await done
            self._replace(weights)
            self._version = version
        finally:
            self._drained.remove(done)
            self._wake()

    def save(self, folder: Path) -> None:
        """Write model and tokenizer in Hugging Face layout; of a model with an adapter the adapter alone."""
        save_weights(self._model, folder)
        self._tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Take the weights of a folder that `save` wrote; counts as one more version."""
        if self._batcher.running:
            raise RuntimeError("load while sequences run; await them first")
        if is_adapted(self._model):
            load_adapter(self._model, folder)
            self._replace(self._model)
        else:
            model, _ = load_policy(folder, dtype=str(self._model.dtype).removeprefix("torch."), device="cpu")
            self._replace(model)
        self._version += 1

    async def close(self) -> None:
        """Stop what runs and give the cache back; callers that still wait are cancelled."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        for row in self._batcher.reset():
            row.future.cancel()
        self._release()

    # --- requests ------------------------------------------------------------------------------------------------

    def _row(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Row:
        prefix = np.asarray(tokens, np.int64)
        self._check(prefix, params)
        ends = frozen(params.end_tokens) or self._end_tokens
        return Row(
            tokens=prefix.tolist(),
            start=len(prefix),
            params=params,
            seed=seed & _MASK,
            limit=min(len(prefix) + params.max_tokens, self._context),
            ends=ends,
            halting=ends | self._stopper.may_end(params.stop),
            future=asyncio.get_running_loop().create_future(),
        )

    def _check(self, prefix: np.ndarray, params: SampleParams) -> None:
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; at least one token must be asked for")
        if not len(prefix):
            raise ArpoError("an empty prefix cannot be continued; the prompt must hold at least one token")
        if len(prefix) >= self._context:
            raise ArpoError(
                f"a prefix of {len(prefix)} tokens leaves no room in the context of {self._context}; shorten the "
                "prompt or the tool results, or raise engine.max_context and engine.max_cached_tokens"
            )
        if prefix.min() < 0 or prefix.max() >= self._vocabulary:
            raise ArpoError(
                f"the prefix holds token ids from {prefix.min()} to {prefix.max()}, the model knows 0 to "
                f"{self._vocabulary - 1}; it was encoded by another tokenizer"
            )

    # --- the loop ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._batcher.waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._stopped)

    async def _run(self) -> None:
        while self._batcher.running or (self._batcher.waiting and not self._drained):
            started = time.perf_counter()
            with self._inference():
                over = self._batcher.step(admit=not self._drained)
            self.stats.steps += 1
            self.stats.seconds += time.perf_counter() - started
            self._answer(over)
            await asyncio.sleep(0)

    def _answer(self, over: Sequence[tuple[Row, Finish]]) -> None:
        for row, finish in over:
            if not row.future.done():
                row.future.set_result(row.segment(finish, self._version))
        if not self._batcher.running:
            self._release()

    def _release(self) -> None:
        """Wake whoever waits for the running rows to end."""
        for waiter in self._drained:
            if not waiter.done():
                waiter.set_result(None)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """The loop has ended: out of work, or it broke, and then every caller must hear of it."""
        if task.cancelled():
            for row in self._batcher.reset():
                row.future.cancel()
        elif (error := task.exception()) is not None:
            for row in self._batcher.reset():
                if not row.future.done():
                    row.future.set_exception(error)
        if not self._batcher.running:
            self._release()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """No gradients and no dropout; a module that a learner has in train mode gets it back that way."""
        training = self._model.training
        if training:
            self._model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            if training:
                self._model.train()

    # --- weights -------------------------------------------------------------------------------------------------

    def _pick_forward(self, fused: bool | None) -> Forward:
        possible = can_fuse(self._model)
        if fused and not possible:
            raise ArpoError(f"engine.fused = true, but {type(self._model).__name__} has no fused pass; leave it out")
        if fused or (fused is None and possible and self._model.num_parameters() < _SMALL):
            return FusedForward(self._model, self._store, self._context)
        return StockForward(self._model, self._store)

    def _replace(self, weights: Any) -> None:
        if weights is not self._model:
            state = weights if isinstance(weights, Mapping) else state_of(weights, adapted=is_adapted(self._model))
            check_state(self._model, state)
            self._model.load_state_dict(state)
        self._forward.refresh()
        self._slots.forget()
