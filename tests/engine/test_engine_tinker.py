"""The engine over the Tinker API, without SDK and server: where segments end, what is asked, what goes wrong."""

import asyncio
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from ports import free_port

from arpo.engine import tinker_trouble
from arpo.engine.base import SampleParams
from arpo.engine.retry import RefusedError
from arpo.engine.settings import TinkerSettings
from arpo.engine.tinker import TinkerEngine
from arpo.engine.tinker_features import Features
from arpo.engine.tinker_trouble import GoneError, Health, LostError, Waiter, status_of
from arpo.errors import ConfigError, EngineDownError, EngineError
from arpo.tree import Finish

URL = "http://127.0.0.1:9"


class Letters:
    """A token is a letter: 0 is the end, 1 is 'a'."""

    eos_token_id = 0

    def __len__(self) -> int:
        return 27

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join("." if token == 0 else chr(96 + token) for token in tokens)


def ids(text: str) -> list[int]:
    return [0 if letter == "." else ord(letter) - 96 for letter in text]


class Says:
    """A server that continues any prefix of its text as the text does, and obeys limits and stops as the API says."""

    def __init__(self, text: str, *, excludes: bool = False, top: int = 0, fails: Sequence[Exception] = ()) -> None:
        self.text, self.excludes, self.top, self.fails = ids(text), excludes, top, list(fails)
        self.asked: list[Any] = []

    def sample(self, *, prompt: list[int], num_samples: int, sampling_params: Any, **more: Any) -> Future[Any]:
        self.asked.append(SimpleNamespace(prompt=prompt, more=more, **vars(sampling_params)))
        future: Future[Any] = Future()
        if self.fails:
            future.set_exception(self.fails.pop(0))
        else:
            future.set_result(SimpleNamespace(sequences=[self._sequence(prompt, sampling_params)]))
        return future

    def _sequence(self, prompt: list[int], params: Any) -> Any:
        new = self.text[len(prompt) :][: params.max_tokens]
        stops = [place for place, token in enumerate(new) if token in (params.stop or [])]
        if stops:
            new = new[: stops[0] + (not self.excludes)]
        top = [[(1, -0.7), (2, -1.5), (3, -3.0)][: self.top]] * len(new) if self.top else None
        return SimpleNamespace(tokens=new, logprobs=[-0.1 * (i + 1) for i in range(len(new))], topk_logprobs=top)


def engine(says: Says, *, skyrl: bool = True, top_k: int = 0, asks: bool = True, **options: Any) -> TinkerEngine:
    settings = TinkerSettings(base_url=URL, top_k=top_k, **options)
    service = SimpleNamespace(
        features=Features(skyrl, frozenset(), clips=not skyrl, top_k=not skyrl, models={"base": None}),
        base_model="base",
        base=says,
        sdk=SimpleNamespace(types=SimpleNamespace(SamplingParams=SimpleNamespace)),
        sdk_version="0.24.1",
        waiter=Waiter(settings),
        prompt=list,
        asks_top_k=lambda _: asks,
        sampler=lambda *, trained: says,
    )
    return TinkerEngine(Letters(), settings, service, vocab_size=27, max_context=64)  # type: ignore[arg-type]


async def drawn(built: TinkerEngine, prefix: str = "ab", **params: Any) -> Any:
    return await built.sample(ids(prefix), SampleParams(**{"max_tokens": 20} | params), seed=1 << 40)


async def test_a_segment_ends_at_its_end_token() -> None:
    says = Says("abcd.xyz")
    segment = await drawn(engine(says))
    assert (segment.tokens.tolist(), segment.finish) == (ids("cd."), Finish.STOP)
    np.testing.assert_allclose(segment.logprobs, [-0.1, -0.2, -0.3], rtol=1e-6)
    np.testing.assert_allclose(segment.entropies, -segment.logprobs)
    assert says.asked[0].seed < 1 << 31


async def test_a_stop_string_ends_it_where_it_is_completed() -> None:
    """'d' may complete "cd" and is stopped at; behind another letter it completes nothing and the segment goes on."""
    says = Says("abxdecdz")
    segment = await drawn(engine(says), stop=("cd",))
    assert (segment.tokens.tolist(), segment.finish) == (ids("xdecd"), Finish.CALL)
    assert [len(request.prompt) for request in says.asked] == [2, 4]
    assert says.asked[0].seed != says.asked[1].seed


async def test_strings_are_sent_where_ids_are_not_wanted() -> None:
    says = Says("abcdz.")
    segment = await drawn(engine(says, stop="strings"), stop=("cd",))
    assert says.asked[0].stop == ["cd", "."]
    assert (segment.tokens.tolist(), segment.finish) == (ids("cd"), Finish.CALL)


async def test_limits_become_powers_of_two_and_the_answer_is_cut() -> None:
    says = Says("abcdefghijk")
    segment = await drawn(engine(says), max_tokens=5)
    assert says.asked[0].max_tokens == 8
    assert (segment.tokens.tolist(), segment.finish) == (ids("cdefg"), Finish.LENGTH)


@pytest.mark.parametrize(
    ("skyrl", "limits", "expected"), [(False, "auto", 5), (True, "exact", 5), (False, "powers", 8)]
)
async def test_exact_limits(skyrl: bool, limits: Any, expected: int) -> None:
    says = Says("abcdefghijk")
    await drawn(engine(says, skyrl=skyrl, limits=limits), max_tokens=5)
    assert says.asked[0].max_tokens == expected


async def test_the_context_is_the_limit() -> None:
    says = Says("a" * 64)
    segment = await engine(says).sample([1] * 61, SampleParams(max_tokens=20), seed=0)
    assert (len(segment), segment.finish, says.asked[0].max_tokens) == (3, Finish.LENGTH, 3)
    with pytest.raises(EngineError, match="no room in the server's context of 64"):
        await engine(says).sample([1] * 64, SampleParams(max_tokens=1), seed=0)


async def test_top_log_probs_bracket_entropies() -> None:
    built = engine(Says("abc.", top=3), skyrl=False, top_k=3)
    segment = await drawn(built)
    assert (built.capabilities.entropy, built.capabilities.top_k, built.notes) == ("topk", 3, ())
    assert (segment.entropies > 0).all()
    assert (segment.slacks > 0).all()


async def test_fewer_top_log_probs_than_asked_for_are_no_answer() -> None:
    with pytest.raises(EngineError, match="3 top log-probs"):
        await drawn(engine(Says("abc.", top=2), skyrl=False, top_k=3))


@pytest.mark.parametrize(
    ("skyrl", "asks", "note"), [(True, True, "this server gives no top"), (False, False, r"0\.24\.1 cannot ask")]
)
def test_estimated_entropies_are_announced(skyrl: bool, asks: bool, note: str) -> None:
    built = engine(Says("a"), skyrl=skyrl, top_k=20, asks=asks)
    assert (built.capabilities.entropy, built.capabilities.top_k) == ("sampled", 0)
    assert re.search(note, built.notes[0])


@pytest.mark.parametrize(("params", "key"), [({"temperature": 0.5}, "temperature"), ({"top_p": 0.9}, "top_p")])
async def test_log_probs_of_another_distribution_are_refused(params: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"rollout.{key}"):
        await drawn(engine(Says("abc.")), **params)
    free = engine(Says("abc."), logprobs="any")
    assert free.capabilities.entropy == "none"
    assert (await drawn(free, **params)).entropies.tolist() == [0.0, 0.0]


async def test_a_server_that_leaves_out_where_it_stopped() -> None:
    with pytest.raises(EngineError, match=r"engine\.stop"):
        await drawn(engine(Says("abc.", excludes=True)))


async def test_a_lost_request_is_sent_again() -> None:
    says = Says("abc.", fails=[failing(404), failing(410)])
    segment = await drawn(engine(says, retries=2))
    assert segment.tokens.tolist() == ids("c.")
    assert len(says.asked) == 3
    with pytest.raises(LostError):
        await drawn(engine(Says("abc.", fails=[failing(404)] * 2), retries=1))


async def test_failures_in_a_row_end_the_rollout() -> None:
    built = engine(Says("abc.", fails=[failing(500)] * 9), breaker=2)
    with pytest.raises(EngineError):
        await drawn(built)
    with pytest.raises(EngineDownError, match="2 requests failed in a row"):
        await drawn(built)


async def test_weights_of_others_are_no_weights() -> None:
    with pytest.raises(ConfigError, match="trains itself"):
        await engine(Says("a")).publish(object(), 1)


class SaidError(Exception):
    """What an SDK raises."""

    def __init__(self, status: int, text: str = "words") -> None:
        super().__init__(text)
        self.status_code = status


def failing(status: int) -> Exception:
    """As the SDK wraps it: the status is the cause's."""
    error = ValueError("Error retrieving result")
    error.__cause__ = SaidError(status)
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (SaidError(401), EngineDownError, "TINKER_API_KEY"),
        (failing(404), LostError, "lost the request"),
        (failing(410), LostError, "lost the request"),
        (SaidError(422), RefusedError, "status 422"),
        (failing(429), EngineError, "ValueError"),
        (SaidError(400, "Model model_1 not loaded"), GoneError, "--resume"),
        (RuntimeError("odd"), EngineError, "RuntimeError: odd"),
    ],
)
def test_errors_of_the_sdk(error: Exception, kind: type[Exception], words: str) -> None:
    found = Waiter(TinkerSettings(base_url=URL)).translate(error, "sample")
    assert type(found) is kind
    assert words in str(found)


def test_a_status_is_found_behind_wrappers() -> None:
    assert status_of(failing(503)) == 503
    assert status_of(RuntimeError()) is None


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at a silent server come soon."""
    monkeypatch.setattr(tinker_trouble, "_SLICE", 0.05)


@pytest.mark.usefixtures("often")
def test_a_dead_server_ends_a_wait_that_the_sdk_would_not_end() -> None:
    waiter = Waiter(TinkerSettings(base_url=f"http://127.0.0.1:{free_port()}", retries=0))
    with pytest.raises(EngineDownError, match=r"no answer 1 times in a row \(ConnectError\)"):
        waiter.call("forever", wait_long)


@pytest.mark.usefixtures("often")
async def test_a_dead_server_ends_a_coroutines_wait() -> None:
    waiter = Waiter(TinkerSettings(base_url=f"http://127.0.0.1:{free_port()}", retries=0))
    never: Future[Any] = Future()
    with pytest.raises(EngineDownError):
        await waiter.answer("sample", never)
    await asyncio.sleep(0)
    assert never.cancelled()


def test_health_is_asked_for_seldom_and_forgives(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([httpx.ConnectError("no"), httpx.Response(200), httpx.ConnectError("no"), httpx.Response(503)])
    health = Health(TinkerSettings(base_url=URL, retries=1))

    def get(*_: Any) -> httpx.Response:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx.Client, "get", get)
    for _ in range(3):
        health._looked = 0.0
        health.check()
        health.check()  # too soon to ask again
    health._looked = 0.0
    with pytest.raises(EngineDownError, match=r"2 times in a row \(status 503\)"):
        health.check()


def wait_long() -> None:
    time.sleep(60)
