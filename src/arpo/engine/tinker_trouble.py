"""What goes wrong between us and a Tinker server, in this library's own errors, and how a wait ends.

The SDK tries again by itself, for minutes and where the promise of an answer is still kept for hours: good against a
busy service, bad against a dead one. So every wait is cut into slices, and between two of them the server is asked for
a sign of life. One that gives none `retries` + 1 times in a row is down, for everybody.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx

from arpo.engine.http import is_loopback
from arpo.engine.retry import RefusedError
from arpo.engine.settings import TinkerSettings
from arpo.errors import ArpoError, EngineDownError, EngineError

T = TypeVar("T")

_SLICE = 2.0
"""Seconds between two looks at a server that has not answered yet."""
_HEALTH_TIMEOUT = 20.0
_GONE = ("not loaded", "model not found", "session not found")
"""What a server says that has been restarted, and has lost what it held in memory."""


class LostError(EngineError):
    """The server has lost a request that it had taken on."""


class GoneError(EngineDownError):
    """The server is well and no longer knows what this run had there."""


class Health:
    """Asks the server for a sign of life, at most once in `_SLICE` seconds however many wait for it."""

    def __init__(self, settings: TinkerSettings) -> None:
        self._url, self._patience = f"{settings.base_url}/api/v1/healthz", settings.retries
        self._lock = threading.Lock()
        self._looked, self._failures, self._reason = 0.0, 0, ""
        self._trust = not is_loopback(settings.base_url)

    def check(self) -> None:
        """EngineDownError if the server gave no sign of life so many times in a row."""
        with self._lock:
            if time.monotonic() - self._looked >= _SLICE:
                reason = self._look()
                self._failures = self._failures + 1 if reason else 0
                self._looked = time.monotonic()
                self._reason = reason
            if self._failures > self._patience:
                raise EngineDownError(
                    f"{self._url}: no answer {self._failures} times in a row ({self._reason}); start the server again "
                    "and go on with --resume"
                )

    def _look(self) -> str:
        try:
            with httpx.Client(timeout=_HEALTH_TIMEOUT, trust_env=self._trust) as client:
                status = client.get(self._url).status_code
        except httpx.RequestError as error:
            return type(error).__name__
        return f"status {status}" if status >= 500 else ""


class Waiter:
    """Waits for the SDK, from a coroutine or from plain code, never longer than `settings.timeout`."""

    def __init__(self, settings: TinkerSettings) -> None:
        self._settings, self.health = settings, Health(settings)

    def call(self, what: str, work: Callable[[], T]) -> T:
        """What `work` returns, done in a thread of its own, which a dead server may keep for as long as it likes."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  raised again by whoever waits
                future.set_exception(error)

        threading.Thread(target=run, name=f"tinker {what}", daemon=True).start()
        since = time.monotonic()
        while True:
            try:
                return future.result(_SLICE)
            except TimeoutError as error:
                if future.done():
                    raise self.translate(error, what) from error
                self._patience(since, what)
            except Exception as error:
                raise self.translate(error, what) from error

    async def answer(self, what: str, future: Any) -> Any:
        """The result of one of the SDK's futures. Cancelling this lets go of it."""
        waiting = asyncio.wrap_future(future) if isinstance(future, Future) else asyncio.ensure_future(_wait(future))
        since = time.monotonic()
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=_SLICE)
                if not waiting.done():
                    await asyncio.to_thread(self._patience, since, what)
            return waiting.result()
        except ArpoError:
            raise
        except Exception as error:
            raise self.translate(error, what) from error
        finally:
            waiting.cancel()

    def _patience(self, since: float, what: str) -> None:
        self.health.check()
        if time.monotonic() - since > self._settings.timeout:
            raise EngineError(
                f"{self._settings.base_url}: {what} took longer than engine.timeout = {self._settings.timeout:g} s"
            )

    def translate(self, error: Exception, what: str) -> EngineError:
        """The SDK's error in our words: what everybody would meet is EngineDownError."""
        if isinstance(error, EngineError):
            return error
        settings, status, said = self._settings, status_of(error), _words(error)
        where = f"{settings.base_url}, {what}"
        if status in (401, 403):
            return EngineDownError(
                f"{where}: status {status} ({said}); set the environment variable {settings.key_variable} to a key "
                "that this server accepts"
            )
        if any(sign in said.lower() for sign in _GONE):
            return GoneError(
                f"{where}: {said}. The server no longer holds this run (it was started again, or closed the session); "
                "go on from the last checkpoint with --resume"
            )
        if status in (404, 410) or type(error).__name__ == "RetryableException":
            return LostError(f"{where}: the server lost the request ({said})")
        if status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429):
            return RefusedError(f"{where}: status {status}: {said}")
        return EngineError(f"{where}: {type(error).__name__}: {said}")


async def _wait(future: Any) -> Any:
    return await future


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error of the SDK, if there is one."""
    while error is not None:
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _words(error: Exception) -> str:
    """What was said, in one line and short. The SDK quotes no keys."""
    return " ".join(str(error).split())[:300] or type(error).__name__
