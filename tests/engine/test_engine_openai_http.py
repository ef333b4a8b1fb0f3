"""What the engine does when the server does not answer: every status, lost connections, hangs, cancellation."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any

import pytest
from completion_server import Characters, CompletionServer, Reply, error
from rollout_fakes import encode

from arpo.engine.base import SampleParams
from arpo.engine.http import is_loopback
from arpo.engine.openai import OpenAIEngine
from arpo.engine.retry import Breaker, BreakerOpenError, RefusedError
from arpo.engine.settings import OpenAISettings
from arpo.errors import ConfigError, EngineDownError, EngineError
from arpo.retry import Clock, backoff, retry_after
from arpo.tree import Segment

KEY = "sk-secret-4711"


@dataclass
class Watch:
    """A clock that does not wait: it remembers the pauses, and `wall` stands still."""

    pauses: list[float] = field(default_factory=list)
    time: float = 0.0
    draw: float = 1.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.time, wall=lambda: 1_700_000_000.0, sleep=self._sleep, draw=lambda: self.draw)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


def first(count: int, change: Callable[[Reply], Reply]) -> Callable[[str, Any, Reply], Reply]:
    """Tamper with the first `count` completions alone."""
    left = count

    def tamper(path: str, request: Any, reply: Reply) -> Reply:
        nonlocal left
        if not path.endswith("/completions") or not left:
            return reply
        left -= 1
        return change(reply)

    return tamper


def status(code: int, **headers: str) -> Callable[[Reply], Reply]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda reply: replace(error(code, "a reason"), headers=names)


@contextmanager
def served(*, watch: Watch | None = None, **options: Any) -> Iterator[tuple[CompletionServer, OpenAIEngine, Watch]]:
    watch = watch or Watch()
    of_settings = {name: options.pop(name) for name in list(options) if name in OpenAISettings.model_fields}
    with CompletionServer(**options) as server:
        settings = OpenAISettings(base_url=server.url, **of_settings)
        engine = OpenAIEngine(Characters(), settings, clock=watch.clock())
        server.requests.clear()
        yield server, engine, watch


def sample(engine: OpenAIEngine) -> Any:
    return engine.sample(encode("why?"), SampleParams(5), 7)


async def failing(engine: OpenAIEngine) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await sample(engine)
    return caught.value


# --- passing trouble -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [status(429), status(500), status(502), status(503), lambda r: replace(r, cut=0)])
async def test_passing_trouble_is_outlived(trouble: Callable[[Reply], Reply]) -> None:
    with served() as (server, engine, watch):
        honest_segment = await sample(engine)
        server.tamper = first(3, trouble)
        segment: Segment = await sample(engine)
        await engine.close()
        assert segment == honest_segment
        assert watch.pauses == [0.5, 1.0, 2.0]
        assert len(server.requests) == 5


async def test_an_answer_cut_in_the_middle_is_asked_for_again() -> None:
    with served() as (server, engine, watch):
        server.tamper = first(1, lambda reply: replace(reply, cut=100))
        assert len(await sample(engine)) == 5
        await engine.close()
        assert len(watch.pauses) == 1


async def test_back_off_is_full_jitter_and_capped() -> None:
    assert [backoff(attempt, 1.0) for attempt in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff(3, 0.25) == 1.0
    assert backoff(3, 0.0) == 0.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        (formatdate(1_700_000_009, usegmt=True), 9.0),
        (formatdate(1_600_000_000, usegmt=True), 0.0),
        (" 120 ", 120.0),
        *((odd, None) for odd in ("soon", "", "nan", "inf", "\uff11\uff12", "Wed, 99 Oct", None)),
    ],
)
def test_retry_after_in_both_its_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, 1_700_000_000.0) == seconds


@pytest.mark.parametrize("value", ["7", formatdate(1_700_000_007, usegmt=True)])
async def test_retry_after_is_honoured(value: str) -> None:
    with served(watch=Watch(draw=0.0)) as (server, engine, watch):
        server.tamper = first(1, status(429, retry_after=value))
        await sample(engine)
        await engine.close()
        assert watch.pauses == [7.0]


async def test_a_server_that_wants_more_patience_than_a_request_has_is_not_waited_for() -> None:
    with served(timeout=60) as (server, engine, watch):
        server.tamper = first(1, status(503, retry_after="3600"))
        assert "status 503" in str(await failing(engine))
        await engine.close()
        assert watch.pauses == []


async def test_retries_end() -> None:
    with served(retries=2) as (server, engine, watch):
        server.tamper = first(9, status(500))
        trouble = await failing(engine)
        await engine.close()
        assert not isinstance(trouble, EngineDownError)
        assert "given up after 3 tries" in str(trouble)
        assert "a reason" in str(trouble)
        assert len(watch.pauses) == 2


async def test_a_hanging_server_is_given_one_more_try() -> None:
    with served(timeout=0.2) as (server, engine, _):
        server.tamper = first(1, lambda reply: replace(reply, hang=True))
        assert len(await sample(engine)) == 5
        server.tamper = first(9, lambda reply: replace(reply, hang=True))
        trouble = await failing(engine)
        await engine.close()
        assert "engine.timeout = 0.2 s; given up after 2 tries" in str(trouble)
        while server.hung_up < 3:
            await asyncio.sleep(0.005)


# --- refusals and final trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [400, 413, 422])
async def test_a_refused_request_is_its_own_fault(code: int) -> None:
    with served(breaker=1) as (server, engine, watch):
        server.tamper = first(1, status(code))
        trouble = await failing(engine)
        assert isinstance(trouble, RefusedError)
        assert f"status {code}: a reason" in str(trouble)
        assert len(await sample(engine)) == 5
        await engine.close()
        assert watch.pauses == []


async def test_a_server_that_refuses_everything_is_given_up() -> None:
    with served(breaker=1) as (server, engine, _):
        server.tamper = first(9, status(400))
        for _ in range(9):
            assert isinstance(await failing(engine), RefusedError)
        await sample(engine)
        server.tamper = first(10, status(400))
        for _ in range(9):
            assert isinstance(await failing(engine), RefusedError)
        trouble = await failing(engine)
        assert isinstance(trouble, EngineDownError)
        assert "10 requests refused in a row" in str(trouble)
        await engine.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (status(401), "set the environment variable ARPO_TEST_KEY"),
        (status(403), "ARPO_TEST_KEY"),
        (status(404), "engine.base_url"),
        (status(301, location="/elsewhere"), "engine.base_url"),
        (lambda reply: Reply(200, "<html>Welcome</html>"), "a web page instead of JSON"),
        (lambda reply: Reply(200, "<!doctype html>", {"content-type": "text/plain"}), "a web page instead of JSON"),
    ],
)
async def test_final_trouble_ends_it_for_everybody(
    change: Callable[[Reply], Reply], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARPO_TEST_KEY", KEY)
    with served(key=KEY, key_variable="ARPO_TEST_KEY") as (server, engine, watch):
        server.tamper = first(1, change)
        for _ in range(2):
            with pytest.raises(EngineDownError, match=words):
                await sample(engine)
        await engine.close()
        assert watch.pauses == []
        assert len(server.requests) == 1


def drop(*path: str | int) -> Callable[[Reply], Reply]:
    """The answer without the member at `path`."""

    def change(reply: Reply) -> Reply:
        value = reply.body
        for name in path[:-1]:
            value = value[name]
        del value[path[-1]]
        return reply

    return change


def put(value: Any, *path: str | int) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        inner = reply.body
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        return reply

    return change


LOGPROBS = ("choices", 0, "logprobs")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("choices"), "no `choices`"),
        (put([], "choices"), "`choices` is empty"),
        (put(None, *LOGPROBS), "no `logprobs`"),
        (drop(*LOGPROBS, "token_logprobs"), "no `token_logprobs`"),
        (drop(*LOGPROBS, "token_logprobs", 0), "5 tokens, 4 log-probs"),
        (put(None, *LOGPROBS, "token_logprobs", 2), "log-probs are missing"),
        (put(0.7, *LOGPROBS, "token_logprobs", 2), "0.7 is no log-prob"),
        (put(float("nan"), *LOGPROBS, "token_logprobs", 2), "nan is no log-prob"),
        (put(-9999.0, *LOGPROBS, "token_logprobs", 2), "-9999.0 is no log-prob"),
        (drop(*LOGPROBS, "top_logprobs"), "no `top_logprobs`"),
        (put({"token_id:1": -0.1}, *LOGPROBS, "top_logprobs", 0), "20 per token were asked for, 1 at the least came"),
        (put({f"token_id:{n}": -0.1 for n in range(20)}, *LOGPROBS, "top_logprobs", 0), "natural logarithms"),
        (put([1, 2, 3], "choices", 0, "prompt_token_ids"), "another prompt, of 3 tokens where 4 were sent"),
        (put(5, "usage", "prompt_tokens"), "another prompt, of 5 tokens"),
        (put(list(range(9)), "choices", 0, "token_ids"), "9 tokens where 1 to 5"),
        (put([1, 2, "a", 4, 5], "choices", 0, "token_ids"), "'a' is no token id"),
        (put({str(n): None for n in range(20)}, *LOGPROBS, "top_logprobs", 0), "another shape"),
        (put([None], "choices"), "no `logprobs`"),
        (put([1, 2], "usage"), "another shape"),
        (lambda reply: Reply(200, ["no"]), "no `choices`"),
        (lambda reply: Reply(200, "Hello", {"content-type": "text/plain"}), "no JSON"),
        (lambda reply: Reply(200, {"error": "overloaded"}), "no `choices`"),
    ],
)
async def test_an_answer_that_lacks_something_is_an_error_that_says_what(
    change: Callable[[Reply], Reply], words: str
) -> None:
    with served() as (server, engine, watch):
        server.tamper = first(1, change)
        trouble = await failing(engine)
        assert words in str(trouble)
        assert not isinstance(trouble, EngineDownError)
        assert len(await sample(engine)) == 5
        await engine.close()
        assert watch.pauses == []


async def test_a_server_that_only_ever_answers_nonsense_is_given_up() -> None:
    with served(breaker=2) as (server, engine, _):
        server.tamper = first(9, drop("choices"))
        assert not isinstance(await failing(engine), EngineDownError)
        assert isinstance(await failing(engine), EngineDownError)
        await engine.close()


# --- the breaker -----------------------------------------------------------------------------------------------------


async def test_a_dead_server_is_given_up_for_everybody_and_comes_back() -> None:
    with served(retries=1, breaker=2) as (server, engine, watch):
        server.kill()
        assert not isinstance(await failing(engine), EngineDownError)
        assert isinstance(await failing(engine), EngineDownError)
        tried = len(watch.pauses)
        assert isinstance(await failing(engine), BreakerOpenError)
        assert len(watch.pauses) == tried
        server.revive()
        assert isinstance(await failing(engine), BreakerOpenError)
        watch.time += 31.0
        assert len(await sample(engine)) == 5
        assert len(await sample(engine)) == 5
        await engine.close()


async def test_a_server_that_restarts_costs_a_pause() -> None:
    """Forty requests lose their connection at once; that is forty tries that failed and not one request."""
    back = asyncio.Event()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await back.wait()

    with CompletionServer(pace=0.02) as server:
        engine = OpenAIEngine(Characters(), OpenAISettings(base_url=server.url, breaker=1), clock=Clock(sleep=pause))
        running = [asyncio.create_task(sample(engine)) for _ in range(40)]
        while server.in_flight < 40:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.kill)
        while len(pauses) < 40:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.revive)
        back.set()
        segments = await asyncio.gather(*running)
        await engine.close()
        assert all(len(segment) == 5 for segment in segments)
        assert len(pauses) == 40


def test_breaker_lets_one_through_when_half_open() -> None:
    watch = Watch()
    breaker = Breaker(2, clock=watch.clock())

    def fail(kind: type[BaseException]) -> None:
        with pytest.raises(kind), breaker.request():
            raise EngineError("lost")

    fail(EngineError)
    fail(EngineDownError)
    fail(BreakerOpenError)
    watch.time = 30.0
    with breaker.request():
        with pytest.raises(BreakerOpenError, match="2 requests failed in a row"), breaker.request():
            pass
        breaker.check()
    fail(EngineError)
    fail(EngineDownError)
    watch.time = 60.0
    fail(EngineDownError)
    watch.time = 89.0
    fail(BreakerOpenError)


def test_breaker_is_not_held_by_a_cancelled_probe() -> None:
    watch = Watch()
    breaker = Breaker(1, clock=watch.clock())
    with pytest.raises(EngineDownError), breaker.request():
        raise EngineError("lost")
    watch.time = 30.0
    with pytest.raises(asyncio.CancelledError), breaker.request():
        raise asyncio.CancelledError
    with breaker.request():
        pass
    breaker.check()


# --- cancellation and closing ----------------------------------------------------------------------------------------


async def test_cancelling_leaves_no_task_and_no_connection() -> None:
    with served(pace=0.05, concurrency=4) as (server, engine, _):
        tasks = asyncio.all_tasks()
        running = [asyncio.create_task(sample(engine)) for _ in range(8)]
        while server.in_flight < 4:
            await asyncio.sleep(0.005)
        for task in running:
            task.cancel()
        results = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        while server.connections:
            await asyncio.sleep(0.005)
        assert server.hung_up == 4
        assert asyncio.all_tasks() == tasks
        assert len(await sample(engine)) == 5
        await engine.close()
        while server.connections:
            await asyncio.sleep(0.005)


async def test_concurrency_is_bounded() -> None:
    most = 0

    def count(path: str, request: Any, reply: Reply) -> Reply:
        nonlocal most
        most = max(most, server.in_flight)
        return reply

    with served(concurrency=3, pace=0.002) as (server, engine, _):
        server.tamper = count
        await asyncio.gather(*(sample(engine) for _ in range(12)))
        await engine.close()
        assert most == 3


async def test_a_closed_engine_says_so() -> None:
    with served() as (_, engine, _):
        await sample(engine)
        await engine.close()
        with pytest.raises(EngineDownError, match="closed"):
            await sample(engine)


async def test_closing_ends_what_runs() -> None:
    with served(pace=0.05) as (server, engine, _):
        running = asyncio.create_task(sample(engine))
        while not server.in_flight:
            await asyncio.sleep(0.005)
        await engine.close()
        with pytest.raises(EngineDownError, match="closed"):
            await running


# --- keys and proxies ------------------------------------------------------------------------------------------------


async def test_the_key_is_sent_and_never_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ARPO_TEST_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    with served(key=KEY, key_variable="ARPO_TEST_KEY", retries=0) as (server, engine, _):
        await sample(engine)
        for code in (400, 401, 500):
            server.tamper = first(1, lambda reply, code=code: error(code, f"Incorrect API key: {KEY}"))  # type: ignore[misc]
            engine._server.breaker.circuit.succeed()
            assert KEY not in str(await failing(engine))
        await engine.close()
    assert KEY not in caplog.text


def test_a_key_that_cannot_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARPO_TEST_KEY", "geheim-ü")
    with CompletionServer() as server, pytest.raises(ConfigError, match="ARPO_TEST_KEY") as caught:
        OpenAIEngine(Characters(), OpenAISettings(base_url=server.url, key_variable="ARPO_TEST_KEY"))
    assert "geheim" not in str(caught.value)


async def test_proxy_variables_do_not_capture_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    with CompletionServer() as proxy, CompletionServer() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        engine = OpenAIEngine(Characters(), OpenAISettings(base_url=server.url))
        assert len(await sample(engine)) == 5
        await engine.close()
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.8.9.1/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost:8000/v1", True),
        ("http://models.localhost/v1", True),
        ("http://10.0.0.1:8000/v1", False),
        ("https://example.com/v1", False),
        ("http://localhost.example.com/v1", False),
    ],
)
def test_which_hosts_are_this_machine(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback
