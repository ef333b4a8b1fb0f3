"""`arpo doctor --engine`: servers whose token ids, log-probs, temperature or stop strings are not what they seem."""

from collections.abc import Callable
from typing import Any

import pytest
from completion_server import CompletionServer, Reply, error
from engine_doctor_cases import Body, answers, breaks, choice_changed, examine, holds, logprobs_changed

from arpo.config.doctor import broken

pytestmark = pytest.mark.usefixtures("plain_environment")


# --- token ids --------------------------------------------------------------------------------------------------------


def test_a_server_that_gives_text_alone() -> None:
    with CompletionServer(token_ids=False, token_names=False) as server:
        breaks(examine(server.url), "token ids out", "has no token ids", "return_token_ids")


def test_ids_as_names_of_log_probs_will_do() -> None:
    with CompletionServer(token_ids=False) as server:
        assert not broken(list(examine(server.url).values()))


def test_a_server_that_refuses_what_vllm_adds() -> None:
    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        strict = path == "/v1/completions" and request is not None and "return_token_ids" in request
        return error(400, "unknown argument: return_token_ids") if strict else reply

    with CompletionServer(tamper=tamper) as server:
        found = examine(server.url)
    breaks(found, "token ids out", "(400): unknown argument: return_token_ids", "vllm serve")
    assert found["log-probs"].status == found["temperature"].status == "ok"


def test_ids_that_are_cut_short() -> None:
    def shorten(request: Body, choice: Body) -> None:
        choice["token_ids"] = choice["token_ids"] and choice["token_ids"][:-2]

    with CompletionServer(tamper=choice_changed(shorten)) as server:
        found = examine(server.url)
    holds(found["token ids out"], "problem", "6 token ids for 8 sampled tokens", "what edits answers")


def test_a_prompt_that_is_tokenised_again() -> None:
    def add_a_beginning(request: Body, body: Body) -> None:
        if isinstance(request["prompt"], list):
            body["choices"][0]["prompt_token_ids"].insert(0, 1)

    with CompletionServer(tamper=answers(add_a_beginning)) as server:
        breaks(examine(server.url), "token ids in", "a prompt of 54 ids arrives as 55 tokens", "takes ids as they are")


def test_a_prompt_of_ids_that_becomes_others() -> None:
    def replace_one(request: Body, body: Body) -> None:
        if isinstance(request["prompt"], list):
            body["choices"][0]["prompt_token_ids"][0] += 1

    with CompletionServer(tamper=answers(replace_one)) as server:
        breaks(examine(server.url), "token ids in", "tokenises it again", "takes ids as they are")


def test_the_count_alone_gives_a_longer_prompt_away() -> None:
    def count_more(request: Body, body: Body) -> None:
        body["choices"][0]["prompt_token_ids"] = None
        body["usage"]["prompt_tokens"] += 1

    with CompletionServer(tamper=answers(count_more)) as server:
        breaks(examine(server.url), "token ids in", "a prompt of 8 ids arrives as 9 tokens", "takes ids as they are")


# --- log-probs --------------------------------------------------------------------------------------------------------


def test_no_log_probs() -> None:
    def without(request: Body, choice: Body) -> None:
        choice["logprobs"] = None

    with CompletionServer(tamper=choice_changed(without)) as server:
        breaks(examine(server.url), "log-probs", "no log-probs in the answer, although 20", "vllm serve")


def test_log_probs_of_the_first_tokens_only() -> None:
    def shorten(logprobs: Body) -> None:
        logprobs["token_logprobs"] = logprobs["token_logprobs"][:3]

    with CompletionServer(tamper=logprobs_changed(shorten)) as server:
        breaks(examine(server.url), "log-probs", "log-probs for 3 of 16 tokens: they are truncated", "vllm serve")


def test_log_probs_with_a_hole() -> None:
    def lose(logprobs: Body) -> None:
        logprobs["token_logprobs"][0] = None

    with CompletionServer(tamper=logprobs_changed(lose)) as server:
        breaks(examine(server.url), "log-probs", "log-probs for 15 of 16 tokens", "vllm serve")


def test_sampled_and_alternatives_of_different_distributions() -> None:
    def lower(logprobs: Body) -> None:
        logprobs["top_logprobs"] = [
            {name: value - 9 for name, value in row.items()} for row in logprobs["top_logprobs"]
        ]

    with CompletionServer(tamper=logprobs_changed(lower)) as server:
        breaks(examine(server.url), "log-probs", "likelier than the likeliest alternative", "edits log-probs")


def scaled(factor: float, shift: float = 0.0) -> Callable[[Body], None]:
    def edit(logprobs: Body) -> None:
        logprobs["token_logprobs"] = [value * factor + shift for value in logprobs["token_logprobs"]]
        rows = logprobs["top_logprobs"]
        logprobs["top_logprobs"] = [{name: value * factor + shift for name, value in row.items()} for row in rows]

    return edit


@pytest.mark.parametrize("edit", [scaled(0.4342944819), scaled(1.0, 12.0)], ids=["base ten", "logits"])
def test_numbers_that_are_no_natural_logs(edit: Callable[[Body], None]) -> None:
    with CompletionServer(tamper=logprobs_changed(edit)) as server:
        breaks(examine(server.url), "natural logs", "more than 1: no natural logarithms", "processed_logprobs")


def test_too_few_alternatives() -> None:
    with CompletionServer(max_logprobs=1) as server:
        breaks(examine(server.url), "top-K", "1 log-probs per token; an entropy needs 5", "--max-logprobs 20")


def test_alternatives_that_are_cut_silently() -> None:
    def cut(logprobs: Body) -> None:
        logprobs["top_logprobs"] = [
            dict(sorted(row.items(), key=lambda item: -item[1])[:3]) for row in logprobs["top_logprobs"]
        ]

    with CompletionServer(tamper=logprobs_changed(cut)) as server:
        breaks(examine(server.url), "top-K", "3 log-probs per token", "--max-logprobs 20")


def test_no_alternatives_at_all() -> None:
    def drop(logprobs: Body) -> None:
        logprobs["top_logprobs"] = None

    with CompletionServer(tamper=logprobs_changed(drop)) as server:
        found = examine(server.url)
    breaks(found, "top-K", "0 log-probs per token", "--max-logprobs 20")
    assert found["natural logs"].status == "not checked"


def test_five_alternatives_are_enough_with_a_setting() -> None:
    with CompletionServer(max_logprobs=5) as server:
        found = examine(server.url)
    assert not broken(list(found.values()))
    assert found["top-K"].detail == "5 log-probs per token; set engine.top_k=5"


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ([-3.0 - 0.01 * place for place in range(20)], "at every token: log-probs are missing or truncated"),
        ([0.0, *(-900.0 - place for place in range(19))], "the entropy is 0 at every token"),
        ([0.0, *[-9999.0] * 19], "some of the likeliest tokens have no probability"),
    ],
    ids=["constant", "zero", "truncated"],
)
def test_entropies_that_tell_nothing(values: list[float], cause: str) -> None:
    def same_everywhere(logprobs: Body) -> None:
        rows = [dict(zip(row, values, strict=False)) for row in logprobs["top_logprobs"]]
        logprobs["top_logprobs"], logprobs["token_logprobs"] = rows, [values[0]] * len(rows)

    with CompletionServer(tamper=logprobs_changed(same_everywhere)) as server:
        breaks(examine(server.url), "entropy", cause, "")


# --- temperature and stop strings -------------------------------------------------------------------------------------


def test_raw_log_probs_do_at_temperature_one() -> None:
    with CompletionServer(logprobs_mode="raw_logprobs") as server:
        found = examine(server.url)
    breaks(found, "temperature", "log-probs are raw", "--logprobs-mode processed_logprobs")


def test_a_temperature_that_does_something_else() -> None:
    def tamper(path: str, request: Body | None, reply: Reply) -> Reply:
        odd = path == "/v1/completions" and request is not None and request.get("temperature") == 0.5
        return logprobs_changed(scaled(0.75))(path, request, reply) if odd else reply

    with CompletionServer(tamper=tamper) as server:
        breaks(examine(server.url), "temperature", "by 1.50 instead of 2", "penalties")


class Unstoppable(CompletionServer):
    """Reads `stop` and goes on."""

    async def _complete(self, request: Body) -> Reply:
        return await super()._complete({**request, "stop": []})


def test_stop_strings_that_are_ignored() -> None:
    with Unstoppable() as server:
        breaks(examine(server.url), "stop strings", "stop strings are ignored", "obeys `stop`")


def test_a_stop_string_whose_token_is_dropped() -> None:
    def drop(request: Body, choice: Body) -> None:
        if request.get("stop") and choice["finish_reason"] == "stop":
            choice["token_ids"].pop()

    with CompletionServer(tamper=choice_changed(drop)) as server:
        found = examine(server.url)
    breaks(found, "stop strings", "is missing from the ids", "every sampled token")


def test_a_model_that_ends_at_once_leaves_stop_strings_unchecked() -> None:
    import numpy as np

    def terse(prefix: Any) -> np.ndarray:
        logits = np.linspace(0.0, 3.0, 128)
        logits[ord("$")] = 9.0 if len(prefix) % 2 else 5.0
        return logits

    with CompletionServer(terse) as server:
        found = examine(server.url)
    assert found["stop strings"].status == "not checked"
    assert "too soon" in found["stop strings"].detail
