"""The two protocols in which servers take token ids and give token ids: requests out, answers in.

`Completions` is the OpenAI completions protocol as `vllm serve` extends it: the prompt is a list of ids, the answer has
`token_ids`, or at least tokens spelt "token_id:17". `Generate` is SGLang's own `/generate`; its completions endpoint
names the top log-probs by their text, under which two tokens that look alike become one, so it cannot be used.

Everything that shapes the distribution is said explicitly: a server fills what is left out from the model's generation
config, and top_k = 20 or a repetition penalty would then bend it unseen. Special tokens are kept in the text, or stop
strings made of them would never be found. No text is read back: ids and numbers alone.

Legend: T tokens, K log-probs per token.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from arpo.engine.served import Answer
from arpo.errors import EngineError

_ROUNDING = 1e-3
"""By how much a probability, or the sum of some, may exceed 1."""
_IMPOSSIBLE = -1000.0
"""No token that was sampled has so small a log-prob; servers write such numbers for minus infinity."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `top_k`: log-probs per token besides the sampled one's; `seed` in [0, 2^63)."""

    tokens: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    end_tokens: tuple[int, ...] = ()
    seed: int = 0
    top_k: int = 0


class MalformedError(EngineError):
    """The server answered, but not with what was asked for."""


class Wire(Protocol):
    """A protocol. `root`: what stands before the paths, from the base URL that users know."""

    models: str
    samples: str

    def root(self, base_url: str) -> str: ...

    def body(self, model: str, ask: Ask) -> dict[str, Any]: ...

    def read(self, reply: Any, ask: Ask) -> Answer:
        """Raises MalformedError that says what is missing or wrong."""
        ...


class Completions:
    """OpenAI completions with vLLM's extensions."""

    models, samples = "/models", "/completions"

    def root(self, base_url: str) -> str:
        return base_url

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(ask.tokens),
            "max_tokens": ask.max_tokens,
            **_sampling(ask),
            "seed": ask.seed,
            "n": 1,
            "stream": False,
            "echo": False,
            "logprobs": ask.top_k,
            "include_stop_str_in_output": True,
            "add_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def read(self, reply: Any, ask: Ask) -> Answer:
        choices = _get(reply, "choices", list)
        if not choices:
            raise MalformedError("`choices` is empty")
        choice = choices[0]
        logprobs = _get(choice, "logprobs", dict)
        tokens = _ids(choice, logprobs)
        _same_prompt(choice.get("prompt_token_ids"), reply, ask)
        top = _get(logprobs, "top_logprobs", list) if ask.top_k else [{}] * len(tokens)
        return _checked(
            ask,
            tokens,
            _get(logprobs, "token_logprobs", list),
            [list((at or {}).values()) for at in top],
            _cached(reply),
        )


class Generate:
    """SGLang's native endpoint."""

    models, samples = "/v1/models", "/generate"

    def root(self, base_url: str) -> str:
        return base_url.rstrip("/").removesuffix("/v1")

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        sampling = _sampling(ask) | {"max_new_tokens": ask.max_tokens, "sampling_seed": ask.seed, "no_stop_trim": True}
        return {
            "input_ids": list(ask.tokens),
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": ask.top_k,
            "return_text_in_logprobs": False,
            "stream": False,
        }

    def read(self, reply: Any, ask: Ask) -> Answer:
        meta = _get(reply, "meta_info", dict)
        finish = _get(meta, "finish_reason", dict).get("type")
        if finish == "abort":
            raise MalformedError(f"the server gave the request up: {meta['finish_reason'].get('message', 'no reason')}")
        sampled = _get(meta, "output_token_logprobs", list)
        tokens = _get(reply, "output_ids", list)
        if [entry[1] for entry in sampled] != tokens:
            raise MalformedError("`output_ids` and the ids of `output_token_logprobs` differ")
        if meta.get("prompt_tokens", len(ask.tokens)) != len(ask.tokens):
            raise MalformedError(_other_prompt(meta["prompt_tokens"], ask))
        top = _get(meta, "output_top_logprobs", list) if ask.top_k else [[]] * len(tokens)
        return _checked(
            ask,
            tokens,
            [entry[0] for entry in sampled],
            [[entry[0] for entry in at or []] for at in top],
            meta.get("cached_tokens"),
        )


def read(wire: Wire, reply: Any, ask: Ask) -> Answer:
    """The answer to `ask` in a server's reply. Raises MalformedError, whatever the reply looks like."""
    try:
        return wire.read(reply, ask)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise MalformedError(f"the answer is of another shape than it should be ({error})") from error


def _sampling(ask: Ask) -> dict[str, Any]:
    """What both protocols call by the same names. top_k = -1 is the whole vocabulary for both."""
    return {
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(ask.stop),
        "stop_token_ids": list(ask.end_tokens),
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def _get(value: Any, name: str, kind: type) -> Any:
    found = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(found, kind):
        raise MalformedError(f"no `{name}` in the answer (it starts {json.dumps(value)[:80]})")
    return found


def _ids(choice: Mapping[str, Any], logprobs: Mapping[str, Any]) -> list[int]:
    """The sampled ids: as such, or spelt out in the tokens' names."""
    found = choice.get("token_ids")
    if isinstance(found, list):
        return found
    names = _get(logprobs, "tokens", list)
    if not all(isinstance(name, str) and name.startswith("token_id:") for name in names):
        raise MalformedError("token ids are missing: neither `token_ids` nor tokens spelt `token_id:17`")
    return [int(name.removeprefix("token_id:")) for name in names]


def _same_prompt(echoed: Any, reply: Mapping[str, Any], ask: Ask) -> None:
    """The server must have continued our ids, without a beginning-of-sequence token of its own."""
    if isinstance(echoed, list) and echoed != list(ask.tokens):
        raise MalformedError(_other_prompt(len(echoed), ask))
    count = (reply.get("usage") or {}).get("prompt_tokens")
    if count is not None and count != len(ask.tokens):
        raise MalformedError(_other_prompt(count, ask))


def _other_prompt(count: int, ask: Ask) -> str:
    return f"the server continued another prompt, of {count} tokens where {len(ask.tokens)} were sent"


def _cached(reply: Mapping[str, Any]) -> int | None:
    details = (reply.get("usage") or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def _checked(
    ask: Ask,
    tokens: list[int],
    logprobs: Sequence[float | None],
    top: Sequence[Sequence[float]],
    cached: int | None,
) -> Answer:
    """An answer of the right shapes, of natural logs, of at most `max_tokens` tokens."""
    if not 1 <= len(tokens) <= ask.max_tokens:
        raise MalformedError(f"{len(tokens)} tokens where 1 to {ask.max_tokens} were asked for")
    strange = [token for token in tokens if type(token) is not int or token < 0]
    if strange:
        raise MalformedError(f"{strange[0]!r} is no token id")
    if len(logprobs) != len(tokens) or any(value is None for value in logprobs):
        raise MalformedError(f"log-probs are missing: {len(tokens)} tokens, {len(logprobs)} log-probs")
    logprob_T = np.array(logprobs, np.float64)
    wrong_T = ~((logprob_T <= _ROUNDING) & (logprob_T > _IMPOSSIBLE))
    if wrong_T.any():
        raise MalformedError(f"{logprob_T[wrong_T][0]} is no log-prob of a token that was sampled")
    return Answer(tokens, np.minimum(logprob_T, 0.0), _top(ask, len(tokens), top), cached)


def _top(ask: Ask, count: int, top: Sequence[Sequence[float]]) -> np.ndarray:
    """The K largest of each row. The sampled token comes along even where it is not among them; then it is dropped."""
    if len(top) != count or any(len(row) < ask.top_k for row in top):
        least = min((len(row) for row in top), default=0)
        raise MalformedError(
            f"top log-probs are missing: {ask.top_k} per token were asked for, {least} at the least came for "
            f"{len(top)} of {count} tokens"
        )
    top_TK = np.array([sorted(row, reverse=True)[: ask.top_k] for row in top], np.float64).reshape(count, ask.top_k)
    mass_T = np.exp(np.minimum(top_TK, 10.0)).sum(-1)
    if not (mass_T <= 1.0 + _ROUNDING).all():
        raise MalformedError(
            f"the probabilities of the top {ask.top_k} tokens sum to {mass_T.max():.3g}: these are no natural "
            "logarithms of probabilities (vLLM: --logprobs-mode processed_logprobs, not ..._logits)"
        )
    return top_TK


def fold(seed: int) -> int:
    """A 64-bit seed as servers take it: signed, and never -1, which some read as "no seed"."""
    return seed & ((1 << 63) - 1)


def same(a: float, b: float) -> bool:
    """Equal up to what a server's own rounding does between two requests."""
    return math.isclose(a, b, rel_tol=0.02, abs_tol=0.02)
