"""An engine behind verl's `LLMServerClient`: token ids out, token ids and log-probs back.

verl owns the servers and their weights; here they are only sampled from. A segment ends by our own rules, looked up in
the ids (`arpo.engine.served`); the server is told of end tokens and stop strings. verl sends all requests of one id to
one server, so `of` gives each tree an engine with an id of its own: its branches then meet the prefix that is already
in that server's cache.

verl asks its servers for the sampled token's log-prob alone: entropies are -log p of what was sampled ("sampled"),
unless the outputs carry the K largest log-probs (`arpo.verl.topk`). Versions are verl's global steps.

Source of the interface: verl 0.9.1, `workers/rollout/llm_server.py` and `replica.TokenOutput`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.completions import fold
from arpo.engine.served import Answer, ServedEngine
from arpo.errors import ArpoError, ConfigError, EngineDownError, EngineError
from arpo.tree import Segment
from arpo.verl.topk import FIELD

_NO_SERVERS = "No available servers"
"""In the message of verl's load balancer once it has none left."""


class VerlEngine(ServedEngine):
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
        requests (they cost a server of vLLM's its batched sampling). `version` is the global step whose weights
        answered last."""
        super().__init__(tokenizer, vocab_size)
        self._client, self._request_id, self._seeded = client, request_id, seeded
        self.capabilities = Capabilities(
            entropy="topk" if top_k else "sampled", top_k=top_k, prefix_reuse=True, max_context=max_context
        )

    def of(self, request_id: str, version: int) -> "VerlEngine":
        """The same engine for one tree. `version`: of the weights, where the server does not say it itself."""
        view = object.__new__(type(self))
        view.__dict__ |= self.__dict__
        view._request_id, view._version = request_id, version
        return view

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """Continue `tokens`; ends with LENGTH at `max_tokens` or at the end of the context.

        The segment's version is the oldest that a request of it was answered with. Raises EngineError for a request
        that failed or a prefix that does not fit, EngineDownError if the server is gone.
        """
        segment = await self._segment(tokens, params, seed, partial(self._request, params))
        self._version = segment.version
        return segment

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

    async def _request(self, params: SampleParams, whole: Sequence[int], limit: int, seed: int) -> Answer:
        asked = self._parameters(params, self._asked(whole, params, limit), seed)
        return self._read(
            await _answered(
                lambda: self._client.generate(self._request_id, prompt_ids=list(whole), sampling_params=asked)
            )
        )

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
            "stop_token_ids": list(self._ends(params)),
        }
        return asked | ({"seed": fold(seed)} if self._seeded else {})

    def _read(self, output: Any) -> Answer:
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
        return Answer(tokens, logprob_T, self._top(extra, len(tokens)), extra.get("num_cached_tokens"), _version(extra))

    def _top(self, extra: dict[str, Any], count: int) -> np.ndarray:
        top_k = self.capabilities.top_k
        if not top_k:
            return np.empty((count, 0))
        rows = extra.get(FIELD)
        if rows is None or len(rows) != count or any(len(row) < top_k for row in rows):
            raise EngineError(f"verl's server did not report {top_k} log-probs for every token ({FIELD})")
        return np.asarray([row[:top_k] for row in rows], np.float64)


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
