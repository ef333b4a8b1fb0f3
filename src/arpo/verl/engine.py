"""An engine behind verl's `LLMServerClient`: token ids out, token ids and log-probs back.

verl owns the servers and their weights; here they are only sampled from. A segment ends by our own rules, looked up in
the ids, as with the engine for servers over HTTP (`arpo.engine.openai`): the server is told of end tokens and stop
strings, what it overruns is cut, and where it stops for a reason of its own the segment is continued. verl sends all
requests of one id to one server, so `of` gives each tree an engine with an id of its own: its branches then meet the
prefix that is already in that server's cache.

verl asks its servers for the sampled token's log-prob alone: entropies are -log p of what was sampled ("sampled"),
unless the outputs carry the K largest log-probs (`arpo.verl.topk`). Versions are verl's global steps.

Source of the interface: verl 0.9.1, `workers/rollout/llm_server.py` and `replica.TokenOutput`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.completions import fold
from arpo.engine.stats import EngineStats
from arpo.engine.stopping import Stopper
from arpo.engine.topk import midpoints
from arpo.errors import ArpoError, ConfigError, EngineDownError, EngineError
from arpo.seeds import derive
from arpo.tree import Finish, Segment, Source
from arpo.verl.topk import FIELD

_NO_SERVERS = "No available servers"
"""In the message of verl's load balancer once it has none left."""


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """What one request gave, cut to what the segment takes of it. `top_TK`: None without top log-probs."""

    tokens: list[int]
    logprob_T: np.ndarray
    top_TK: np.ndarray | None
    version: int | None
    cached: int | None


class VerlEngine:
    """Implements `arpo.engine.base.Engine` over verl's client. `of` gives the view that one tree samples through."""

    def __init__(
        self,
        client: Any,
        tokenizer: Any,
        *,
        vocab_size: int,
        max_context: int,
        top_k: int = 0,
        seeded: bool = False,
        request_id: str = "arpo",
    ) -> None:
        """`top_k`: how many log-probs every token comes with, 0 for the sampled one's alone. `seeded`: send seeds with
        requests (they cost a server of vLLM's its batched sampling)."""
        self._client, self._tokenizer, self._request_id = client, tokenizer, request_id
        self._vocab_size, self._top_k, self._seeded = vocab_size, top_k, seeded
        self._stopper = Stopper(self._decode, range(len(tokenizer)))
        self._end_tokens = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self._version = 0
        self.stats = EngineStats()
        self.capabilities = Capabilities(
            entropy="topk" if top_k else "sampled", top_k=top_k, prefix_reuse=True, max_context=max_context
        )

    def of(self, request_id: str, version: int) -> "VerlEngine":
        """The same engine for one tree. `version`: of the weights, where the server does not say it itself."""
        view = object.__new__(type(self))
        view.__dict__ |= self.__dict__
        view._request_id, view._version = request_id, version
        return view

    @property
    def version(self) -> int:
        """The global step whose weights answered last."""
        return self._version

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens`; ends with LENGTH at `max_tokens` or at the end of the context.

        The segment's version is the oldest that a request of it was answered with. Raises EngineError for a request
        that failed or a prefix that does not fit, EngineDownError if the server is gone.
        """
        prefix = [int(token) for token in tokens]
        limit = min(params.max_tokens, self.capabilities.max_context - len(prefix))
        self._refuse(prefix, params, limit)
        whole, answers, finish = list(prefix), list[_Answer](), None
        while finish is None:
            left = limit - (len(whole) - len(prefix))
            answer = await self._request(whole, params, left, seed, len(answers))
            count, finish = self._stopper.cut(
                whole, answer.tokens[:left], params.end_tokens or self._end_tokens, params.stop
            )
            answers.append(_first(answer, count))
            if finish is None and len(whole) - len(prefix) >= limit:
                finish = Finish.LENGTH
        return self._segment(prefix, answers, finish)

    async def publish(self, weights: Any, version: int) -> None:
        """verl sends its servers the weights itself. ConfigError for any version but the one that they have."""
        if version != self._version:
            raise ConfigError("verl's servers are given their weights by verl's trainer, not through this engine")

    def save(self, folder: Path) -> None:
        """The weights are verl's. Raises EngineError."""
        raise EngineError("the weights are verl's; its trainer saves them (trainer.save_freq)")

    def load(self, folder: Path) -> None:
        """The weights are verl's. Raises EngineError."""
        raise EngineError("the weights are verl's; its trainer loads them (trainer.resume_mode)")

    async def close(self) -> None:
        """Nothing is held: the servers are verl's."""

    # --- one request ---------------------------------------------------------------------------------------------

    def _refuse(self, prefix: Sequence[int], params: SampleParams, limit: int) -> None:
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; at least one token must be asked for")
        if not prefix:
            raise EngineError("an empty prefix cannot be continued; the prompt must hold at least one token")
        if limit < 1:
            raise EngineError(
                f"a prefix of {len(prefix)} tokens leaves no room in the server's context of "
                f"{self.capabilities.max_context}; shorten the prompt or the tool results"
            )

    async def _request(self, whole: Sequence[int], params: SampleParams, left: int, seed: int, number: int) -> _Answer:
        few = self._stopper.to_complete(whole, params.stop)
        asked = self._parameters(params, min(few or left, left), derive(seed, number) if number else seed)
        output = await _answered(
            lambda: self._client.generate(self._request_id, prompt_ids=list(whole), sampling_params=asked)
        )
        answer = self._read(output)
        self._count(len(whole), answer)
        return answer

    def _parameters(self, params: SampleParams, max_tokens: int, seed: int) -> dict[str, Any]:
        """verl hands them to vLLM's `SamplingParams`; `logprobs` is its own yes or no."""
        asked: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": list(params.end_tokens or self._end_tokens),
        }
        return asked | ({"seed": fold(seed)} if self._seeded else {})

    def _read(self, output: Any) -> _Answer:
        tokens, logprobs, extra = list(output.token_ids), output.log_probs, output.extra_fields
        if not tokens:
            raise EngineError(f"verl's server gave no token (stop reason: {output.stop_reason})")
        if logprobs is None or len(logprobs) != len(tokens):
            raise EngineError(
                f"verl's server gave {len(logprobs or ())} log-probs for {len(tokens)} tokens; set "
                "actor_rollout_ref.rollout.calculate_log_probs=true"
            )
        logprob_T = np.asarray(logprobs, np.float64)
        if not np.isfinite(logprob_T).all():
            raise EngineError("verl's server gave a log-prob that is no finite number")
        return _Answer(
            tokens, logprob_T, self._top(extra, len(tokens)), _version(extra), extra.get("num_cached_tokens")
        )

    def _top(self, extra: dict[str, Any], count: int) -> np.ndarray | None:
        if not self._top_k:
            return None
        rows = extra.get(FIELD)
        if rows is None or len(rows) != count or any(len(row) < self._top_k for row in rows):
            raise EngineError(f"verl's server did not report {self._top_k} log-probs for every token ({FIELD})")
        return np.asarray([row[: self._top_k] for row in rows], np.float64)

    def _segment(self, prefix: Sequence[int], answers: Sequence[_Answer], finish: Finish) -> Segment:
        tokens = np.array([token for answer in answers for token in answer.tokens], np.int32)
        logprob_T = np.concatenate([answer.logprob_T for answer in answers]).astype(np.float32)
        entropy_T, slack_T = -logprob_T, np.empty(0, np.float32)
        if self._top_k:
            top = [answer.top_TK for answer in answers if answer.top_TK is not None]
            entropy_T, slack_T = midpoints(np.concatenate(top), self._vocab_size)
        told = [answer.version for answer in answers if answer.version is not None]
        self._version = min(told, default=self._version)
        self.stats.calls += 1
        self.stats.prefix_tokens += len(prefix)
        self.stats.sampled_tokens += len(tokens)
        return Segment(
            tokens=tokens,
            source=Source.POLICY,
            logprobs=logprob_T,
            entropies=entropy_T,
            finish=finish,
            version=self._version,
            slacks=slack_T,
        )

    def _count(self, asked: int, answer: _Answer) -> None:
        if answer.cached is not None:
            self.stats.reused_tokens += answer.cached
            self.stats.prefilled_tokens += asked - answer.cached
            self.stats.computed_tokens += asked - answer.cached + len(answer.tokens) - 1

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


async def _answered(ask: Callable[[], Any]) -> Any:
    """What the client gives. A dead actor is the end of the engine; what an actor raised costs this request."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    try:
        return await ask()
    except ArpoError:
        raise
    except RayActorError as error:
        raise EngineDownError(f"verl's LLM server is gone: {_brief(error)}") from error
    except RayTaskError as error:
        if _NO_SERVERS in str(error):
            raise EngineDownError(f"verl has no LLM server left: {_brief(error)}") from error
        raise EngineError(f"verl's LLM server refused a request: {_brief(error)}") from error
    except RayError as error:
        raise EngineDownError(f"verl's LLM server cannot be reached: {_brief(error)}") from error
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise EngineError(f"a request to verl's LLM server failed: {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).strip()[:300]


def _version(extra: dict[str, Any]) -> int | None:
    value = extra.get("min_global_steps", extra.get("global_steps"))
    return None if value is None else int(value)


def _first(answer: _Answer, count: int) -> _Answer:
    top = None if answer.top_TK is None else answer.top_TK[:count]
    return _Answer(answer.tokens[:count], answer.logprob_T[:count], top, answer.version, answer.cached)
