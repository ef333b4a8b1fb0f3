"""What a server gives, found out by asking before anything depends on it.

A handful of requests for one token each tell whether ids come back as ids, how long a sequence may be, and which
distribution its log-probs are of. That is decided on the gap between the likeliest and the least likely of the top K,
d = ln p_1 - ln p_K. At temperature 1/2 it is 2d if log-probs are taken after the temperature ("processed") and d if
before ("raw"). With top_p = 0.01 only the likeliest token is left, so its log-prob is 0 if log-probs are taken after
the truncation and unchanged if before.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.engine.completions import Ask, MalformedError, Wire, read, same
from arpo.engine.http import Server
from arpo.engine.retry import RefusedError
from arpo.engine.served import Answer
from arpo.engine.settings import OpenAISettings
from arpo.errors import ConfigError

_PROMPTS = (2, 3, 5, 7)
"""Prompts to try: the token at that fraction of the vocabulary. Several, in case a distribution is too plain."""

_TELLING = 0.1
"""Nats that a number must be away from 0 to be told from its double, or from 0."""

_NO_IDS = {
    "openai": (
        'vLLM from 0.10 on returns them (return_token_ids); for SGLang set engine.api = "sglang"; other servers that '
        "give text alone cannot be trained from, because text encoded again is not what was sampled"
    ),
    "sglang": 'this is no SGLang server; set engine.api = "openai"',
}


@dataclass(frozen=True, slots=True)
class Served:
    """`processed`: log-probs are taken after the temperature; `truncated`: and after top_p."""

    model: str
    max_context: int
    processed: bool
    truncated: bool


def inspect(server: Server, wire: Wire, settings: OpenAISettings, vocab_size: int) -> Served:
    """Ask the server. EngineDownError if it does not answer, ConfigError with the remedy if it cannot be used."""
    card = _card(server, wire, settings)
    context = _context(server, card, settings)
    ask = _asker(server, wire, settings, str(card["id"]))
    return Served(str(card["id"]), context, *_kinds(server, ask, [vocab_size // part for part in _PROMPTS]))


def _card(server: Server, wire: Wire, settings: OpenAISettings) -> dict[str, Any]:
    """The model's entry in the server's list."""
    reply = server.ask("GET", wire.models)
    cards = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(cards, list) or not cards:
        raise ConfigError(f"{server.base_url}{wire.models} lists no models; check engine.base_url")
    _refuse_other(server, cards[0], settings)
    names = [card["id"] for card in cards]
    if settings.served_model is None and len(cards) > 1:
        raise ConfigError(f"{server.base_url} serves {', '.join(names)}; name one in engine.served_model")
    wanted = settings.served_model or names[0]
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it serves {', '.join(names)}"
        raise ConfigError(f"engine.served_model = {wanted!r} is not served at {server.base_url}; {hint}")
    return cards[names.index(wanted)]


def _refuse_other(server: Server, card: dict[str, Any], settings: OpenAISettings) -> None:
    """SGLang and vLLM say who they are; the other's protocol would fail with less to go on."""
    other = {"openai": "sglang", "sglang": "vllm"}[settings.api]
    if card.get("owned_by") == other:
        right = "sglang" if settings.api == "openai" else "openai"
        raise ConfigError(f'{server.base_url} is a server of {other}; set engine.api = "{right}"')


def _context(server: Server, card: dict[str, Any], settings: OpenAISettings) -> int:
    known = [value for value in (card.get("max_model_len"), settings.max_context) if value is not None]
    if not known:
        raise ConfigError(
            f"{server.base_url} does not say how long a sequence may be (max_model_len); set engine.max_context"
        )
    return int(min(known))


Asker = Callable[[Sequence[int], float, float], Answer]


def _asker(server: Server, wire: Wire, settings: OpenAISettings, model: str) -> Asker:
    """Ask for one token of a prompt at a temperature and top_p. ConfigError with what the server lacks."""

    def ask(prompt: Sequence[int], temperature: float, top_p: float) -> Answer:
        question = Ask(prompt, 1, temperature, top_p, top_k=max(settings.top_k, 2))
        try:
            return read(wire, server.ask("POST", wire.samples, wire.body(model, question)), question)
        except MalformedError as error:
            remedy = _NO_IDS[settings.api] if _lacks_ids(settings, error) else "see docs/engines.md"
            raise ConfigError(f"{server.base_url} cannot be used: {error}; {remedy}") from error
        except RefusedError as error:
            raise ConfigError(
                f"{error}. That was a request for one token with {question.top_k} log-probs; if that is too many, "
                "lower engine.top_k or start the server with a higher limit (vLLM: --max-logprobs)"
            ) from error

    return ask


def _lacks_ids(settings: OpenAISettings, error: MalformedError) -> bool:
    return "token ids" in str(error) or settings.api == "sglang"


def _kinds(server: Server, ask: Asker, prompts: Sequence[int]) -> tuple[bool, bool]:
    """(processed, truncated). A distribution too plain to tell the second leaves it at True, which refuses top_p."""
    processed: bool | None = None
    for prompt in prompts:
        plain = ask([prompt], 1.0, 1.0).top_TK[0]
        gap = plain[0] - plain[-1]
        if processed is None and gap > _TELLING:
            sharp = ask([prompt], 0.5, 1.0).top_TK[0]
            processed = not same(sharp[0] - sharp[-1], gap)
        if processed is not None and plain[0] < -_TELLING:
            narrow = ask([prompt], 1.0, 0.01).top_TK[0]
            return processed, not same(narrow[0], plain[0])
    if processed is None:
        raise ConfigError(
            f"{server.base_url}: the likeliest tokens are all equally likely after each of {len(prompts)} prompts, so "
            "it cannot be told what temperature the log-probs are of; is this the model that you mean?"
        )
    return processed, True
