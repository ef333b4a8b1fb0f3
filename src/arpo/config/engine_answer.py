"""One completion asked for as the engine asks for it, and the answer read with as little trust as possible.

The request is the engine's own (`arpo.engine.completions`), so that what a server makes of it here it will make of it
in a rollout. Reading is not the engine's: that stops at the first thing amiss, where the doctor wants to see the rest.
"""

from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from arpo.config.engine_contact import Contact
from arpo.config.engine_trouble import Trouble
from arpo.engine.completions import Ask, Completions, Generate

_PLAIN = ("model", "prompt", "max_tokens", "temperature", "top_p", "stop", "logprobs")


@dataclass
class Visit:
    """One walk along the chain, and what was learnt on the way. `plain`: the server refuses what vLLM adds."""

    contact: Contact
    wanted: str | None
    listing: httpx.Response | None = None
    model: str = ""
    card: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    sglang: bool = False
    plain: bool = False
    context: int | None = None
    top_k: int = 0
    logp_TK: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def listed(self) -> httpx.Response:
        """What `GET /models` answered; the chain asks for it first."""
        assert self.listing is not None
        return self.listing


@dataclass(frozen=True, slots=True)
class Choice:
    """The first choice of an answer. `ids`, `prompt_ids` and `logprobs` are None where the server gives none."""

    text: str
    finish: str | None
    ids: list[int] | None
    prompt_ids: list[int] | None
    logprobs: dict[str, Any] | None
    usage: dict[str, Any]


def ask(
    visit: Visit,
    prompt: str | list[int],
    max_tokens: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 1,
    stop: tuple[str, ...] = (),
) -> Choice:
    """One completion, asked for in the engine's own words; greedy unless told otherwise."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt  # any small ids will do where text cannot go
    wanted = Ask(ids, max_tokens, temperature, top_p, stop=stop, top_k=top_k)
    if visit.sglang:
        body = Generate().body(visit.model, wanted)
        return read_choice(_as_completion(visit.contact.post("/generate", body, at_root=True)))
    body = {**Completions().body(visit.model, wanted), "prompt": prompt}
    if visit.plain:
        body = {name: body[name] for name in _PLAIN}
    return read_choice(visit.contact.post("/completions", body))


def _as_completion(reply: dict[str, Any]) -> dict[str, Any]:
    """An answer of SGLang's /generate in the shape of a completion."""
    meta = reply["meta_info"]
    top = [{str(entry[1]): entry[0] for entry in at or []} for at in meta.get("output_top_logprobs") or []]
    choice = {
        "text": reply["text"],
        "token_ids": reply.get("output_ids"),
        "finish_reason": meta["finish_reason"]["type"],
        "logprobs": {"token_logprobs": [entry[0] for entry in meta["output_token_logprobs"]], "top_logprobs": top},
    }
    cached = {"cached_tokens": meta.get("cached_tokens")}
    usage = {name: meta[name] for name in ("prompt_tokens", "completion_tokens") if name in meta}
    return {"choices": [choice], "usage": usage | {"prompt_tokens_details": cached}}


def read_choice(answer: dict[str, Any]) -> Choice:
    """The first choice of a completions answer; Trouble if it is not shaped like one."""
    choice = first_choice(answer)
    if not isinstance(choice.get("text"), str):
        detail = f"the completion has no `text`; it has {_keys(choice)}"
        raise Trouble(detail, "use the server's completions endpoint, not its chat endpoint")
    usage, logprobs = answer.get("usage"), choice.get("logprobs")
    return Choice(
        choice["text"],
        choice.get("finish_reason"),
        _token_ids(choice),
        _integers(choice.get("prompt_token_ids")),
        logprobs if isinstance(logprobs, dict) else None,
        usage if isinstance(usage, dict) else {},
    )


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """`answer["choices"][0]`; Trouble if there is none."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        detail = f"the answer has no `choices`; it has {_keys(answer)}"
        raise Trouble(detail, "give the address of a server (or gateway) that speaks the OpenAI protocol unchanged")
    return choices[0]


def _keys(answer: dict[str, Any]) -> str:
    return ", ".join(list(answer)[:6]) or "nothing"


def _integers(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(item) is int for item in value) else None


def _token_ids(choice: dict[str, Any]) -> list[int] | None:
    """From `token_ids`, else from log-probs whose tokens are named `token_id:N`."""
    ids = _integers(choice.get("token_ids"))
    names = (choice.get("logprobs") or {}).get("tokens") if ids is None else None
    if isinstance(names, list) and all(isinstance(name, str) and name.startswith("token_id:") for name in names):
        return [int(name.removeprefix("token_id:")) for name in names]
    return ids
