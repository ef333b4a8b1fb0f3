"""What engines behind a server have in common: a segment is made of the answers to one request or several.

A segment ends by our own rules, looked up in the ids: at an end token, or at the token that completes a stop string.
What a server generated past that is cut off. Where it stopped for a reason that is none of ours (its model's own end
token, an accidental match) the segment is continued by another request, from there and with a seed of its own: a pause
does not change what is sampled from.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Stopper, decoder
from arpo.engine.topk import midpoints
from arpo.errors import EngineError
from arpo.seeds import derive
from arpo.tree import Finish, Segment, Source


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What one request gave: tokens `[T]`, their log-probs `[T]` and the K largest log-probs at each `[T, K]`.

    `cached`: prompt tokens that the server did not compute anew. `version`: of the weights. None: it does not say.
    """

    tokens: Sequence[int]
    logprob_T: np.ndarray
    top_TK: np.ndarray
    cached: int | None = None
    version: int | None = None

    def first(self, count: int) -> "Answer":
        """Of the first `count` tokens."""
        return replace(self, tokens=self.tokens[:count], logprob_T=self.logprob_T[:count], top_TK=self.top_TK[:count])


Request = Callable[[Sequence[int], int, int], Awaitable[Answer]]
"""Continues these tokens, by so many at the most, with this seed; gives at least one token."""


class ServedEngine:
    """A base of engines. They set `capabilities`, and sample by `_segment` with a request of their own."""

    capabilities: Capabilities

    def __init__(self, tokenizer: Any, vocab_size: int | None) -> None:
        """`vocab_size`: tokens in the model's distribution; None: those of the tokenizer."""
        self._decode = decoder(tokenizer)
        self._vocab_size = vocab_size or len(tokenizer)
        self._stopper = Stopper(self._decode, range(len(tokenizer)))
        self._end_tokens = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self._version = 0
        self.stats = EngineStats()

    @property
    def version(self) -> int:
        """Of the weights that sample now."""
        return self._version

    async def _segment(self, tokens: Sequence[int], params: SampleParams, seed: int, request: Request) -> Segment:
        """The segment that continues `tokens`; of the oldest version that the server named, else of this engine's.

        Raises EngineError for a prefix that does not fit, and what `request` raises.
        """
        prefix, version = [int(token) for token in tokens], self._version
        end = len(prefix) + self._room(prefix, params)
        whole, answers, finish = list(prefix), list[Answer](), None
        while finish is None:
            size = len(whole)
            answer = await request(whole, end - size, derive(seed, len(answers)) if answers else seed)
            self._count_request(size, answer)
            count, finish = self._stopper.cut(whole, answer.tokens[: end - size], self._ends(params), params.stop)
            answers.append(answer.first(count))
            if finish is None and len(whole) == end:
                finish = Finish.LENGTH
        told = (answer.version for answer in answers if answer.version is not None)
        self.stats.calls += 1
        self.stats.prefix_tokens += len(prefix)
        self.stats.sampled_tokens += len(whole) - len(prefix)
        return self._assemble(whole[len(prefix) :], answers, finish, min(told, default=version))

    def _room(self, prefix: Sequence[int], params: SampleParams) -> int:
        """How many tokens may follow, at least one."""
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; at least one token must be asked for")
        if not prefix:
            raise EngineError("an empty prefix cannot be continued; the prompt must hold at least one token")
        room = min(params.max_tokens, self.capabilities.max_context - len(prefix))
        if room < 1:
            raise EngineError(
                f"a prefix of {len(prefix)} tokens leaves no room in the server's context of "
                f"{self.capabilities.max_context}; shorten the prompt or the tool results"
            )
        return room

    def _ends(self, params: SampleParams) -> tuple[int, ...]:
        return params.end_tokens or self._end_tokens

    def _asked(self, whole: Sequence[int], params: SampleParams, limit: int) -> int:
        """How many tokens to ask a server for that looks for stop strings in the *new* text only.

        Where the prefix ends within one (a window may have cut it in two) so few as could complete it.
        """
        return min(self._stopper.to_complete(whole, params.stop) or limit, limit)

    def _count_request(self, size: int, answer: Answer) -> None:
        """What the server computed, if it says: what of the prefix it had to, and each new token but the last."""
        if answer.cached is not None:
            fresh = size - answer.cached
            self.stats.reused_tokens += answer.cached
            self.stats.prefilled_tokens += fresh
            self.stats.computed_tokens += fresh + len(answer.tokens) - 1

    def _assemble(self, tokens: Sequence[int], answers: Sequence[Answer], finish: Finish, version: int) -> Segment:
        logprob_T = np.concatenate([answer.logprob_T for answer in answers]).astype(np.float32)
        entropy_T, slack_T = -logprob_T, np.empty(0, np.float32)
        if self.capabilities.entropy == "none":
            entropy_T = np.zeros_like(logprob_T)
        elif self.capabilities.entropy == "topk":
            entropy_T, slack_T = midpoints(np.concatenate([answer.top_TK for answer in answers]), self._vocab_size)
        return Segment(
            tokens=np.array(tokens, np.int32),
            source=Source.POLICY,
            logprobs=logprob_T,
            entropies=entropy_T,
            finish=finish,
            version=version,
            slacks=slack_T,
        )
