"""What a rollout needs of a server's completions, probed one property at a time.

A rollout passes token ids in and takes token ids, the natural log-probs of what was sampled and those of the likeliest
alternatives out; entropies are bracketed from the alternatives (`arpo.engine.topk`). Each probe asks for as little as
shows one property, raises `Trouble` if it does not hold and otherwise says in a few words what was seen.

Shape suffixes: T positions of an answer, K alternatives per position.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arpo.config.engine_answer import Choice, Visit, ask, read_choice
from arpo.config.engine_trouble import Trouble
from arpo.engine.settings import OpenAISettings
from arpo.engine.topk import bracket

PROMPT = "Question: Which city is the capital of France? Answer:"
TOP_K = int(OpenAISettings.model_fields["top_k"].default)
LEAST_TOP_K = 5

_LARGEST_VOCABULARY = 1 << 18
_NOTHING = -1000.0  # servers write minus infinity as a large negative number
_SERVERS = "use a server that returns them, such as `vllm serve`"


def completions(visit: Visit) -> str:
    """The plain completion that everything else builds on."""
    body = {"model": visit.model, "prompt": PROMPT, "max_tokens": 8}
    try:
        choice = read_choice(visit.contact.post("/completions", body))
    except Trouble as trouble:
        if trouble.code != 404:
            raise
        detail = f"no completions for this model: {trouble.detail}"
        raise Trouble(detail, "use a server that offers completions, not only chat, such as `vllm serve`") from None
    return f"{len(choice.text)} characters for 8 tokens, finish reason {choice.finish!r}"


def token_ids_out(visit: Visit) -> str:
    """Ids of what was sampled: by `return_token_ids`, or as names of log-probs."""
    try:
        choice = ask(visit, PROMPT, 8)
    except Trouble:
        visit.plain = True  # the probes of log-probs can do without
        raise
    if not choice.ids:
        raise Trouble(
            "the answer has no token ids, and text must never be tokenised again",
            "use a server that knows return_token_ids, such as vLLM 0.10.2 or newer, or SGLang",
        )
    counted = choice.usage.get("completion_tokens", len(choice.ids))
    if counted != len(choice.ids):
        fix = "switch off what edits answers (reasoning parsers, gateways) between the model and this library"
        raise Trouble(f"{len(choice.ids)} token ids for {counted} sampled tokens", fix)
    visit.prompt_ids = choice.prompt_ids or choice.ids
    return f"{len(choice.ids)} ids for {counted} sampled tokens"


def token_ids_in(visit: Visit) -> str:
    """A prompt of ids reaches the model as it is."""
    sent = visit.prompt_ids
    choice = ask(visit, sent, 1)
    got = len(choice.prompt_ids) if choice.prompt_ids is not None else choice.usage.get("prompt_tokens")
    if got is None:
        raise Trouble("the server does not say what became of a prompt of token ids", _SERVERS, "missing")
    if got != len(sent) or choice.prompt_ids not in (None, sent):
        detail = f"a prompt of {len(sent)} ids arrives as {got} tokens: the server tokenises it again or adds to it"
        raise Trouble(detail, "use a server that takes ids as they are, such as `vllm serve`")
    return f"a prompt of {len(sent)} ids arrives unchanged"


def logprobs(visit: Visit) -> str:
    """Log-probs of what was sampled at temperature 1, as many as tokens; keeps the alternatives for the next probes."""
    choice, asked = _with_alternatives(visit)
    chosen = (choice.logprobs or {}).get("token_logprobs")
    if not isinstance(chosen, list) or not chosen:
        raise Trouble(f"no log-probs in the answer, although {asked} per token were asked for", _SERVERS)
    expected = len(choice.ids) if choice.ids else choice.usage.get("completion_tokens", len(chosen))
    if len(chosen) != expected or not all(_is_number(value) for value in chosen):
        given = sum(_is_number(value) for value in chosen)
        raise Trouble(f"log-probs for {given} of {expected} tokens: they are truncated", _SERVERS)
    visit.logp_TK = _alternatives(choice, asked, len(chosen))
    visit.top_k = visit.logp_TK.shape[1]
    if visit.top_k and (np.array(chosen) > visit.logp_TK[:, 0] + 1e-3).any():
        detail = "a sampled token is likelier than the likeliest alternative: they are of different distributions"
        raise Trouble(detail, "switch off what edits log-probs at the server")
    return f"one for each of {len(chosen)} tokens"


def _with_alternatives(visit: Visit) -> tuple[Choice, int]:
    """A sampled answer with as many alternatives as the server grants, and how many were asked for."""
    for asked in (TOP_K, LEAST_TOP_K):
        try:
            return ask(visit, PROMPT, 16, temperature=1.0, top_k=asked), asked
        except Trouble as trouble:
            if trouble.code not in (400, 422):
                raise
    return ask(visit, PROMPT, 16, temperature=1.0), 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and bool(np.isfinite(value))


def _alternatives(choice: Choice, asked: int, length: int) -> np.ndarray:
    """Log-probs `[T, K]` of the likeliest tokens, falling; K is what every position has, and no more than asked for."""
    rows = (choice.logprobs or {}).get("top_logprobs")
    rows = rows if isinstance(rows, list) and len(rows) == length else [None] * length
    values = [sorted((v for v in (row or {}).values() if _is_number(v)), reverse=True) for row in rows]
    count = min(asked, *(len(row) for row in values))
    return np.array([row[:count] for row in values], np.float64)


def natural_logs(visit: Visit) -> str:
    """Exponentials of one position's log-probs are probabilities: they sum to 1 at the most."""
    largest = float(np.exp(visit.logp_TK).sum(axis=1).max(initial=0.0))
    if visit.logp_TK.size == 0:
        raise Trouble("no alternatives (`top_logprobs`) to sum up", "", "not checked")
    if largest > 1.001:
        detail = f"the exponentials of one token's log-probs sum to {largest:.3g}, more than 1: no natural logarithms"
        raise Trouble(detail, "start the server so that it returns them: vLLM with --logprobs-mode processed_logprobs")
    return f"exponentials sum to {largest:.3f} at the most"


def alternatives(visit: Visit) -> str:
    """Enough alternatives for a bracket of the entropy."""
    if visit.top_k < LEAST_TOP_K:
        detail = f"{visit.top_k} log-probs per token; an entropy needs {LEAST_TOP_K}, better {TOP_K}"
        raise Trouble(detail, f"start the server with more: vLLM with --max-logprobs {TOP_K}")
    advice = "" if visit.top_k >= TOP_K else f"; set engine.top_k={visit.top_k}"
    return f"{visit.top_k} log-probs per token{advice}"


def entropy(visit: Visit) -> str:
    """Entropies that vary, as those of a language model do."""
    if (visit.logp_TK <= _NOTHING).any():
        fix = "start vLLM with --generation-config vllm, so that the model's own sampling defaults do not apply"
        raise Trouble("some of the likeliest tokens have no probability: the server truncates the distribution", fix)
    low_T, high_T = bracket(visit.logp_TK, _LARGEST_VOCABULARY)
    if low_T.max() < 1e-6 or (len(low_T) > 1 and np.ptp(low_T) < 1e-9):
        detail = f"the entropy is {abs(low_T.max()):.3g} at every token: log-probs are missing or truncated"
        raise Trouble(detail, "switch off top-k, top-p, guided decoding and caches of answers at the server")
    half = float((high_T - low_T).mean()) / 2
    spread = f"{low_T.min():.2f} to {high_T.max():.2f} nats over {len(low_T)} tokens"
    return f"{spread}, known to ±{half:.2f} or better on average"


def temperature(visit: Visit) -> str:
    """Log-probs at the sampling temperature: halving it must double their differences."""
    first_K, second_K = _same_tokens(visit, 1.0), _same_tokens(visit, 0.5)
    shared = [name for name in first_K if name in second_K]
    x_K = np.array([first_K[name] for name in shared], np.float64)
    y_K = np.array([second_K[name] for name in shared], np.float64)
    dx_K, dy_K = x_K - x_K.mean() if shared else x_K, y_K - y_K.mean() if shared else y_K
    if len(shared) < 2 or (dx_K @ dx_K) < 1e-6:
        raise Trouble("too few alternatives in common to tell", "", "not checked")
    slope = float(dx_K @ dy_K / (dx_K @ dx_K))
    if abs(slope - 2) < 0.1:
        cut = len(_same_tokens(visit, 1.0, top_p=0.01)) < len(first_K)
        advice = ", and cut by top_p: leave rollout.top_p at 1" if cut else ""
        return f"log-probs are those at the sampling temperature (processed){advice}"
    if abs(slope - 1) < 0.1:
        detail = "log-probs are raw: those at temperature 1, whatever the sampling temperature"
        fix = "start vLLM with --logprobs-mode processed_logprobs, or leave rollout.temperature at 1"
        raise Trouble(detail, fix)
    detail = f"halving the temperature multiplies differences of log-probs by {slope:.2f} instead of 2"
    raise Trouble(detail, "switch off penalties and other sampling defaults at the server")


def _same_tokens(visit: Visit, heat: float, top_p: float = 1.0) -> dict[str, float]:
    """Alternatives of the first token after the prompt, which depend on nothing that was sampled."""
    choice = ask(visit, PROMPT, 1, temperature=heat, top_p=top_p, top_k=visit.top_k)
    rows: Sequence[Any] = (choice.logprobs or {}).get("top_logprobs") or [{}]
    return {name: value for name, value in (rows[0] or {}).items() if _is_number(value) and value > _NOTHING}


def stop_strings(visit: Visit) -> str:
    """A stop string ends the answer at the token that completes it, and that token is in the ids."""
    stop, wanted_ids = _some_stop_string(visit)
    choice = ask(visit, PROMPT, len(wanted_ids) + 8, stop=(stop,))
    if choice.finish != "stop":
        detail = f"stop strings are ignored: the answer goes on beyond {stop!r}, and every call pays for what follows"
        raise Trouble(detail, "use a server that obeys `stop` in completions, such as `vllm serve`")
    ids = choice.ids or []
    if ids == wanted_ids:
        return f"the answer ends with the token that completes {stop!r}"
    if len(ids) < len(wanted_ids) and ids == wanted_ids[: len(ids)]:
        detail = f"the token that completes the stop string {stop!r} is missing from the ids"
        raise Trouble(detail, "use a server that returns every sampled token, such as `vllm serve`")
    raise Trouble("greedy answers differ from call to call, so that ends cannot be compared", "", "not checked")


def _some_stop_string(visit: Visit) -> tuple[str, list[int]]:
    """A string that the greedy answer first contains after n tokens, and the ids of these n tokens."""
    for count in (6, 4, 2):
        longer, shorter = (ask(visit, PROMPT, n) for n in (count, count - 1))
        start = len(shorter.text) if longer.text.startswith(shorter.text) else 0
        stops = (longer.text[place:] for place in range(start, -1, -1))
        stop = next((stop for stop in stops if stop and stop not in shorter.text), None)
        if longer.finish == "length" and stop is not None and longer.ids:
            return stop, longer.ids
    raise Trouble("the model ends its answer to the probe too soon to try one", "", "not checked")
