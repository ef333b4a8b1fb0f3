"""One request to a provider: bounded in time and size, with every failure told by what can be done about it.

What may be over in a moment (no connection, 408, 429, 5xx) is a TransientError, with the time that the provider asks
for; everything else is a ProviderError. Redirects are not followed, since the key would travel with them, and proxies
named in the environment are not used. The key is in the headers alone: never in an address, a body, a message or a log;
should a provider repeat it in its answer, it is blotted out there before anybody sees the answer.
"""

import asyncio
import functools
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from arpo.retry import retry_after
from arpo.tools.base import TransientError
from arpo.tools.results import clean
from arpo.tools.search.providers.adapter import Adapter, ProviderError, Request

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "arpo-search"}
_BLOT = b"[key]"
_REFUSAL = 65536
"""Bytes of a refusal that are read."""
_TOLD = 200
"""Characters of a refusal that are repeated."""


class Http:
    """Sends the requests of one provider. Usable from several event loops; each has its own connections."""

    def __init__(self, adapter: Adapter, key: str, key_env: str, *, timeout: float, max_bytes: int) -> None:
        """`key` may be empty; `key_env` names it in messages. `timeout`: seconds for each connection and pause in the
        answer; `max_bytes`: longest answer, unpacked.
        """
        self.adapter = adapter
        self.key_env = key_env
        self.timeout = timeout
        self.max_bytes = max_bytes
        self._key = key
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def send(self, request: Request) -> bytes:
        """The body of the answer, JSON for certain. Raises TransientError or ProviderError."""
        try:
            status, headers, body = await self._exchange(request)
        except (httpx.TimeoutException, httpx.NetworkError, httpx.ProtocolError) as error:
            raise TransientError(f"{self._where}: {type(error).__name__} {self._safe(str(error))}".strip()) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise ProviderError(f"{self._where}: {type(error).__name__} {self._safe(str(error))}") from None
        body = self._blotted(body)
        if status != 200:
            raise self._refused(status, headers, body)
        parse(self._where, body)
        return body

    @property
    def _where(self) -> str:
        return f"{self.adapter.name} ({self.adapter.base_url})"

    async def _exchange(self, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        headers = self.adapter.authorization(self._key) if self._key else {}
        sent = self._client().stream(
            request.method, request.url, params=request.params, json=request.json, headers=headers
        )
        async with sent as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if response.status_code != 200 and len(body) > _REFUSAL:
                    break
                if len(body) > self.max_bytes:
                    raise ProviderError(f"{self._where}: an answer of more than {self.max_bytes} bytes (max_bytes)")
            return response.status_code, response.headers, bytes(body)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for gone in [each for each in self._clients if each.is_closed()]:
                del self._clients[gone]  # its connections went with it
            client = self._clients[loop] = httpx.AsyncClient(
                headers=_HEADERS, timeout=self.timeout, trust_env=False, follow_redirects=False, verify=_tls()
            )
        return client

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        said = f"HTTP {status}: {self._safe(body.decode(errors='replace'))}"
        if status in (408, 425, 429) or status >= 500:
            return TransientError(f"{self._where}: {said}", retry_after(headers.get("Retry-After"), time.time()))
        advice = self.adapter.refusal(status) or self._advice(status)
        return ProviderError(f"{self._where}: {advice}. {said}")

    def _advice(self, status: int) -> str:
        key = f"the key in {self.key_env}" if self._key else "a request without a key"
        if status in (401, 403):
            return f"refuses {key}; check that it is valid for this provider and not used up"
        if status == 402:
            return f"wants to be paid for {key}"
        if status == 404:
            return "has nothing at this address; check base_url"
        if 300 <= status < 400:
            return "sends on to another address, which is not followed; set base_url to the final one"
        return "refuses the request; check params"

    def _safe(self, said: str) -> str:
        """The start of what a provider said, on one line and without the key."""
        if self._key:
            said = said.replace(self._key, _BLOT.decode())
        return " ".join(clean(said[: 10 * _TOLD]).split())[:_TOLD]

    def _blotted(self, body: bytes) -> bytes:
        if not self._key:
            return body
        for form in {self._key, json.dumps(self._key)[1:-1], self._key.replace("/", "\\/")}:
            body = body.replace(form.encode(), _BLOT)
        return body

    async def close(self) -> None:
        """Close this event loop's connections; those of loops that are gone went with them."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than a search on this machine."""
    return httpx.create_ssl_context(trust_env=False)


def parse(where: str, body: bytes) -> Any:
    """The JSON value of `body`. Raises ProviderError saying what it is instead."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        start = body.lstrip()[:15].lower()
        if start.startswith((b"<!doctype", b"<html", b"<")):
            raise ProviderError(
                f"{where}: a web page instead of JSON; the address is wrong, or a login or error page stands in between"
            ) from None
        raise ProviderError(f"{where}: an answer that is no JSON ({type(error).__name__})") from None
