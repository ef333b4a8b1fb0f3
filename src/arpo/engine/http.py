"""JSON over HTTP to a model server, and what to do when it does not answer.

Three kinds of trouble are told apart. *Passing* ones (429, 5xx, a lost or refused connection, a request that hangs) are
tried again after a full-jitter back-off, or after what Retry-After says. *Refusals* (400 and the like) are this
request's own fault: they are raised at once and say nothing against the server. *Final* ones (401, 403, 404, a page of
HTML) would meet everybody, so they are raised as EngineDownError and open the breaker.

A client belongs to an event loop, so it is made when a loop asks first and again for the next loop. A cancelled request
closes its connection, which is how servers learn that nobody waits. Keys appear in no message.
"""

import asyncio
import ipaddress
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx

from arpo.engine.retry import Breaker, RefusedError
from arpo.errors import ConfigError, EngineDownError, EngineError
from arpo.retry import Clock, backoff, retry_after

T = TypeVar("T")

_EXCERPT = 300
"""Characters of a server's own words that a message quotes."""
_CONNECT = 10.0
"""Seconds for a connection to be made."""


class _PassingError(Exception):
    """Worth another try. `after`: seconds that the server asks for; `hung`: it was a time limit that ended it."""

    def __init__(self, reason: str, *, after: float | None = None, hung: bool = False) -> None:
        super().__init__(reason)
        self.after, self.hung = after, hung


class Server:
    """A server at `base_url`. `post` for the event loop, `ask` for synchronous code at start-up."""

    def __init__(
        self,
        base_url: str,
        *,
        key_variable: str,
        concurrency: int,
        timeout: float,
        retries: int,
        breaker: int = 3,
        clock: Clock | None = None,
        table: str = "engine",
        model_key: str = "served_model",
    ) -> None:
        """`table`, `model_key`: where its settings stand, for messages."""
        self.base_url = base_url.rstrip("/")
        self._table, self._model_key = table, f"{table}.{model_key}"
        self.clock = clock or Clock()
        self.breaker = Breaker(breaker, clock=self.clock)
        self._key_variable, self._key = key_variable, _key(key_variable)
        self._concurrency, self._timeout, self._retries = concurrency, timeout, retries
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(concurrency)
        self._closed = False

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """What `read` makes of the JSON that `base_url` + `path` answers; asked again while the trouble may pass.

        `read` raises EngineError for an answer that is none, which counts against the server as silence does. Raises
        RefusedError or EngineError for this request, EngineDownError if every further one would fail.
        """
        client = self._for_this_loop()
        async with self._slots:
            with self.breaker.request():
                return read(await self._persist(client, self.base_url + path, body))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One synchronous request. A server that does not answer now is down: EngineDownError."""
        url = self.base_url + path
        try:
            limit = httpx.Timeout(self._timeout, connect=_CONNECT)
            with httpx.Client(**self._options() | {"timeout": limit}) as client:
                return self._judge(url, client.request(method, url, json=body))
        except httpx.RequestError as error:
            raise self._unreachable(url, error) from error
        except _PassingError as passing:
            raise EngineDownError(f"{url}: {passing}; try again when the server is ready") from passing

    async def close(self) -> None:
        """Close all connections; nothing can be asked afterwards."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def without_key(self, text: str) -> str:
        """`text` without the key, should a server have quoted it."""
        return text.replace(self._key, "***") if self._key else text

    # --- tries ---------------------------------------------------------------------------------------------------

    async def _persist(self, client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Any:
        hung = 0
        for attempt in range(self._retries + 1):
            try:
                return await self._try(client, url, body)
            except _PassingError as passing:
                hung += passing.hung
                wait = self._wait(attempt, passing)
                if attempt == self._retries or hung > 1 or wait is None:
                    raise EngineError(f"{url}: {passing}; given up after {attempt + 1} tries") from passing
            await self.clock.sleep(wait)
            self.breaker.check()
        raise AssertionError("the last try either answers or raises")

    def _wait(self, attempt: int, passing: _PassingError) -> float | None:
        """Seconds before the next try; None if the server wants more patience than a request may have."""
        jitter = backoff(attempt, self.clock.draw())
        if passing.after is None:
            return jitter
        return passing.after + jitter if passing.after <= self._timeout else None

    async def _try(self, client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Any:
        if self._closed:
            raise EngineDownError("the engine is closed")
        try:
            async with asyncio.timeout(self._timeout):
                response = await client.post(url, json=body)
        except TimeoutError as error:
            raise _PassingError(f"no answer within {self._table}.timeout = {self._timeout:g} s", hung=True) from error
        except httpx.RequestError as error:
            raise _PassingError(f"connection lost ({_name(error)})") from error
        return self._judge(url, response)

    def _judge(self, url: str, response: httpx.Response) -> Any:
        """The answer's JSON, or the error that its status and body stand for."""
        status = response.status_code
        if status == 429 or status >= 500:
            after = retry_after(response.headers.get("retry-after"), self.clock.wall())
            raise _PassingError(f"status {status}: {self._words(response)}", after=after)
        if status in (401, 403):
            sent = f"the key in {self._key_variable} is refused" if self._key else "no key was sent"
            raise EngineDownError(
                f"{url}: status {status}, {sent} ({self._words(response)}); set the environment variable "
                f"{self._key_variable} to a key that this server accepts"
            )
        if status == 404 or 300 <= status < 400:
            raise EngineDownError(
                f"{url}: status {status} ({self._words(response)}); check {self._table}.base_url (it usually ends in "
                f"/v1) and {self._model_key}"
            )
        if status >= 400:
            raise RefusedError(f"{url}: status {status}: {self._words(response)}")
        return self._json(url, response)

    def _json(self, url: str, response: httpx.Response) -> Any:
        if "html" in response.headers.get("content-type", "") or response.text.lstrip().startswith("<"):
            raise EngineDownError(
                f"{url}: a web page instead of JSON; {self._table}.base_url is not that of the API (it usually ends in "
                "/v1)"
            )
        try:
            return response.json()
        except json.JSONDecodeError as error:
            raise EngineError(f"{url}: the answer is no JSON: {self._words(response)!r}") from error

    def _words(self, response: httpx.Response) -> str:
        """What the server says about itself, short and without keys."""
        try:
            said = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            said = "a web page" if response.text.lstrip().startswith("<") else response.text
        for name in ("error", "message", "detail"):
            if isinstance(said, dict) and said.get(name):
                said = said[name]
        return self.without_key(said if isinstance(said, str) else json.dumps(said))[:_EXCERPT]

    def _unreachable(self, url: str, error: httpx.RequestError) -> EngineDownError:
        return EngineDownError(
            f"{url}: no answer ({_name(error)}); start the server, or set {self._table}.base_url to where it listens"
        )

    # --- clients -------------------------------------------------------------------------------------------------

    def _for_this_loop(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise EngineDownError("the engine is closed")
        if self._client is None or self._loop is not loop:
            limits = httpx.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency)
            self._client = httpx.AsyncClient(**self._options(), limits=limits)
            self._loop, self._slots = loop, asyncio.Semaphore(self._concurrency)
        return self._client

    def _options(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        waits = httpx.Timeout(None, connect=_CONNECT)
        return {"headers": headers, "timeout": waits, "trust_env": not is_loopback(self.base_url)}


def is_loopback(url: str) -> bool:
    """True for this machine's own addresses, which no proxy can reach for us."""
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _key(variable: str) -> str:
    """The key in that environment variable, "" if there is none. ConfigError if it cannot stand in a header."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable} holds characters that no key has; set it anew")
    return key


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
