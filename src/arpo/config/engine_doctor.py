"""Whether a server can sample for a rollout: the chain from its address to its log-probs, link by link.

A link names the links that it stands on. Where one of those does not hold, the link is reported as not checked: a
server that is not there has no broken log-probs. What is `required` a rollout cannot do without; chat and tool calls
are looked at for the user's sake only, because this library renders prompts and parses calls from token ids itself.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from arpo.config import engine_probes as probes
from arpo.config.doctor import Finding
from arpo.config.engine_answer import Visit, ask, first_choice
from arpo.config.engine_contact import Contact, Patience
from arpo.config.engine_trouble import Trouble, parse_address, proxy_variable
from arpo.engine.http import is_loopback

_WEIGHTS = ("/collective_rpc", "/update_weight_version", "/update_weights", "/init_weight_transfer_engine")
_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length")
_SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search an encyclopedia.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


@dataclass(frozen=True, slots=True)
class Link:
    """One link: `check` returns what was seen, or raises Trouble. `needs`: names of the links it stands on."""

    name: str
    check: Callable[[Visit], str]
    needs: tuple[str, ...] = ()
    required: bool = True


def examine_engine(
    url: str, model: str | None = None, key_variable: str = "OPENAI_API_KEY", patience: Patience | None = None
) -> list[Finding]:
    """Walk the chain of the server at `url`. Every link gives one finding, in order; nothing is raised."""
    try:
        contact = Contact(parse_address(url), key_variable, patience or Patience())
    except Trouble as trouble:
        first = Finding("address", trouble.status, trouble.detail, trouble.fix, required=True)
        return [first, *(_not_checked(link, "address") for link in CHAIN)]
    try:
        address = Finding("address", "ok", contact.base, required=True)
        return [address, *_walk(Visit(contact, model))]
    finally:
        contact.close()


def _walk(visit: Visit) -> Iterator[Finding]:
    holds = {"address"}
    for link in CHAIN:
        lacking = next((name for name in link.needs if name not in holds), None)
        finding = _not_checked(link, lacking) if lacking else _check(link, visit)
        if finding.status == "ok":
            holds.add(link.name)
        yield finding


def _not_checked(link: Link, after: str) -> Finding:
    return Finding(link.name, "not checked", f"needs: {after}", required=link.required)


def _check(link: Link, visit: Visit) -> Finding:
    try:
        return Finding(link.name, "ok", visit.contact.clean(link.check(visit)), required=link.required)
    except Trouble as trouble:
        detail, fix = visit.contact.clean(trouble.detail), visit.contact.clean(trouble.fix)
        return Finding(link.name, trouble.status, detail, fix, required=link.required)
    except Exception as error:  # noqa: BLE001  (an answer of any shape may come; the doctor must come to its end)
        detail = visit.contact.clean(f"an answer of an unknown shape ({type(error).__name__}: {error})")
        return Finding(link.name, "problem", detail, visit.contact.speaks, required=link.required)


# --- reaching the protocol --------------------------------------------------------------------------------------------


def _proxy(visit: Visit) -> str:
    contact = visit.contact
    variable, host = proxy_variable(contact.parts), contact.parts.hostname
    if variable is None:
        return "none on the way"
    if not is_loopback(contact.base):
        return f"requests go through the one in {variable}"
    detail = f"{variable} captures requests for {host}, this machine; this library goes past it, curl and others do not"
    raise Trouble(detail, f"export NO_PROXY={host} no_proxy={host}")


def _reachable(visit: Visit) -> str:
    contact = visit.contact
    visit.listing = contact.ask(f"{contact.base}/models")
    version = contact.peek("version")
    named = isinstance(version, dict) and version.get("version")
    return f"{contact.place} answers{f', version {named}' if named else ''}"


def _base_path(visit: Visit) -> str:
    contact, code = visit.contact, visit.listed.status_code
    if code in (401, 403):
        return f"{contact.base} is guarded"
    if code == 404 and visit.wanted is not None:  # some gateways list nothing, and answer nevertheless
        contact.post("/completions", {"model": visit.wanted, "prompt": probes.PROMPT, "max_tokens": 1})
        return f"{contact.base}, which lists no models"
    contact.read(visit.listed)
    return contact.base


def _key(visit: Visit) -> str:
    contact = visit.contact
    if contact.key and not contact.key_fits:
        detail = f"the value of {contact.key_variable} has a line break or other characters that no key has"
        raise Trouble(detail, f"export {contact.key_variable} again, without what surrounds the key")
    if visit.listed.status_code in (401, 403):
        contact.read(visit.listed)
    return f"the one in {contact.key_variable} is accepted" if contact.key else "none sent, none asked for"


# --- the model --------------------------------------------------------------------------------------------------------


def _model(visit: Visit) -> str:
    if visit.wanted is not None and visit.listed.status_code == 404:
        visit.model = visit.wanted
        return f"{visit.model}, taken as given"
    cards = _cards(visit)
    names = ", ".join(list(cards)[:8])
    if visit.wanted is not None and visit.wanted not in cards:
        raise Trouble(f"{visit.wanted!r} is not served; served: {names}", f"give --model {next(iter(cards))}")
    if visit.wanted is None and len(cards) > 1:
        fix = "choose one with --model NAME, and for a run with engine.served_model=NAME"
        raise Trouble(f"{len(cards)} models are served and none is chosen: {names}", fix)
    visit.model = visit.wanted or next(iter(cards))
    visit.card = cards[visit.model]
    visit.sglang = visit.card.get("owned_by") == "sglang"
    return f"{visit.model}{' at SGLang: give a run engine.api=sglang' if visit.sglang else ''}"


def _cards(visit: Visit) -> dict[str, dict[str, Any]]:
    listing = visit.contact.read(visit.listed)
    data = listing.get("data") if isinstance(listing, dict) else None
    cards = {card["id"]: card for card in data if isinstance(card, dict) and "id" in card} if data else {}
    if not cards:
        raise Trouble("the list of models is empty, or none", "start the server with a model, or give --model NAME")
    return cards


def _context(visit: Visit) -> str:
    visit.context = next((visit.card[name] for name in _CONTEXT if isinstance(visit.card.get(name), int)), None)
    if visit.context is None:
        raise Trouble("the server does not say", "give it to a run as engine.max_context=N", "missing")
    return f"{visit.context:,} tokens"


# --- what a rollout does without --------------------------------------------------------------------------------------


def _chat(visit: Visit) -> str:
    message = _message(visit, "Say hello.")
    if not isinstance(message.get("content"), str):
        raise Trouble("the chat answer has no text `content`", visit.contact.speaks)
    return f"role {message.get('role')!r}, {len(message['content'])} characters"


def _message(visit: Visit, said: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}]
    body = {"model": visit.model, "messages": messages, "max_tokens": 48, "temperature": 0.0, **options}
    message = first_choice(visit.contact.post("/chat/completions", body)).get("message")
    if not isinstance(message, dict):
        raise Trouble("the chat answer has no `message`", visit.contact.speaks)
    return message


def _tool_calls(visit: Visit) -> str:
    remedy = (
        "start vLLM with --enable-auto-tool-choice and the --tool-call-parser of the model; a rollout needs neither"
    )
    try:
        message = _message(visit, "Search for the capital of France.", tools=[_SEARCH], tool_choice="auto")
    except Trouble as trouble:
        raise Trouble(trouble.detail, remedy, "missing") from None
    calls, content = message.get("tool_calls") or [], message.get("content") or ""
    if not calls and "<tool_call>" in content:
        raise Trouble("the model's call comes back as text: the server does not parse its format", remedy)
    for call in calls:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str) or not isinstance(_json(arguments), dict):
            raise Trouble("the arguments of a tool call are not a JSON object in a string", remedy)
    return f"{len(calls)} well-formed" if calls else "tools are accepted; the model answered without a call"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _weights(visit: Visit) -> str:
    spec = visit.contact.peek("openapi.json")
    paths = spec.get("paths", {}) if isinstance(spec, dict) else {}
    found = [path for path in _WEIGHTS if path in paths]
    if not found:
        fix = "to train with it, start vLLM with VLLM_SERVER_DEV_MODE=1, where nobody else reaches it"
        raise Trouble("no endpoints that take new weights", fix, "missing")
    return ", ".join(found)


def _prefix_cache(visit: Visit) -> str:
    prompt = (visit.prompt_ids * 300)[: min(300, (visit.context or 600) // 2)]
    for _ in range(2):
        usage = ask(visit, prompt, 1).usage
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached:
        return f"on: {cached} of {len(prompt)} tokens of a repeated prompt came from it"
    metrics = visit.contact.peek("metrics")
    if isinstance(metrics, str) and 'enable_prefix_caching="True"' in metrics:
        return "on"
    if isinstance(metrics, str) and 'enable_prefix_caching="False"' in metrics:
        raise Trouble("off: every turn computes its whole prefix again", "start vLLM with --enable-prefix-caching")
    raise Trouble("the server does not show whether it has one", "nothing to do if it is on", "missing")


CHAIN: tuple[Link, ...] = (
    Link("proxy", _proxy, ("address",), required=False),
    Link("reachable", _reachable, ("address",)),
    Link("base path", _base_path, ("reachable",)),
    Link("key", _key, ("base path",)),
    Link("model", _model, ("key",)),
    Link("completions", probes.completions, ("model",)),
    Link("token ids out", probes.token_ids_out, ("completions",)),
    Link("token ids in", probes.token_ids_in, ("token ids out",)),
    Link("log-probs", probes.logprobs, ("completions",)),
    Link("natural logs", probes.natural_logs, ("log-probs",)),
    Link("top-K", probes.alternatives, ("log-probs",)),
    Link("entropy", probes.entropy, ("natural logs", "top-K")),
    Link("stop strings", probes.stop_strings, ("token ids out",), required=False),
    Link("temperature", probes.temperature, ("entropy",), required=False),
    Link("context length", _context, ("model",), required=False),
    Link("prefix cache", _prefix_cache, ("token ids in",), required=False),
    Link("weight transfer", _weights, ("reachable",), required=False),
    Link("chat", _chat, ("model",), required=False),
    Link("tool calls", _tool_calls, ("chat",), required=False),
)
