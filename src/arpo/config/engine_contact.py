"""One server of completions, asked as the engine asks it; what goes wrong on the way is a `Trouble`."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlunsplit

import httpx

from arpo.config.engine_trouble import Trouble, no_answer, no_json, refusal
from arpo.engine.http import is_loopback

_ENDPOINTS = ("/chat/completions", "/completions", "/models", "/chat")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait for a connection and for an answer (a server on a CPU takes its time for the first one)."""

    connect: float = 5.0
    answer: float = 60.0


class Contact:
    """A connection that opens with the first request. Nothing that it gives out contains the key."""

    def __init__(self, parts: SplitResult, key_variable: str, patience: Patience) -> None:
        self.parts, self.key_variable, self.patience = parts, key_variable, patience
        self.key = os.environ.get(key_variable, "").strip()
        self.place = parts.netloc.rpartition("@")[2]
        self.root = f"{parts.scheme}://{self.place}"
        self.base = urlunsplit(parts._replace(netloc=self.place, query="", fragment=""))
        self._client: httpx.Client | None = None

    @property
    def speaks(self) -> str:
        """The remedy where a server speaks something else."""
        return (
            "give the address of a server that speaks the OpenAI completions protocol, such as `vllm serve` or SGLang"
        )

    @property
    def key_fits(self) -> bool:
        """Whether a header can hold the key."""
        return self.key.isascii() and self.key.isprintable()

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def clean(self, text: str) -> str:
        """`text` without the key and without the password of the address (stand-ins such as "x" are no secrets)."""
        for secret in (self.key, self.parts.password or ""):
            text = text.replace(secret, "***") if len(secret) >= 4 else text
        return text

    def ask(self, url: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send one request, POST if there is a body; Trouble if no answer comes."""
        client = self._open()
        try:
            return client.request("GET" if body is None else "POST", url, json=body)
        except httpx.HTTPError as error:
            raise no_answer(self, error) from error

    def read(self, response: httpx.Response) -> Any:
        """The JSON of an answer; Trouble if it reports a failure or is none."""
        if response.status_code != 200:
            raise refusal(self, response)
        try:
            return response.json()
        except ValueError:
            raise no_json(self, response) from None

    def post(self, path: str, body: dict[str, Any], *, at_root: bool = False) -> dict[str, Any]:
        """Send `body` to `base` + `path` (`at_root`: base without /v1) and return the JSON object that answers it."""
        base = self.base.removesuffix("/v1") if at_root else self.base
        answer = self.read(self.ask(f"{base}{path}", body))
        if not isinstance(answer, dict):
            raise Trouble(f"{path} answers with a {type(answer).__name__} instead of a JSON object", self.speaks)
        return answer

    def peek(self, path: str) -> Any:
        """What `root/path` holds (JSON, else text), or None: for what a server need not have."""
        with suppress(Trouble):
            response = self.ask(f"{self.root}/{path}")
            if response.status_code == 200:
                with suppress(ValueError):
                    return response.json()
                return response.text
        return None

    def path_hint(self) -> str:
        """Where the protocol begins on this server, after a look around."""
        found = next((base for base in self._neighbours() if self._lists_models(base)), None)
        return f"use {found}" if found else f"end the address where the protocol begins, as a rule {self.root}/v1"

    def _lists_models(self, base: str) -> bool:
        with suppress(Trouble, ValueError, TypeError):
            response = self.ask(f"{base}/models")
            return response.status_code in (401, 403) or "data" in response.json()
        return False

    def _neighbours(self) -> Iterator[str]:
        trimmed = self.base
        for endpoint in _ENDPOINTS:
            trimmed = trimmed.removesuffix(endpoint)
        parent = trimmed.rpartition("/")[0]
        bases = (trimmed, f"{trimmed}/v1", f"{self.root}/v1", f"{self.root}/api/v1", parent)
        yield from (base for base in dict.fromkeys(bases) if base != self.base and base.startswith(self.root))

    def _open(self) -> httpx.Client:
        if self._client is None:
            headers = {"Authorization": f"Bearer {self.key}"} if self.key and self.key_fits else {}
            user, password = self.parts.username, self.parts.password
            auth = httpx.BasicAuth(unquote(user or ""), unquote(password or "")) if user or password else None
            timeout = httpx.Timeout(self.patience.answer, connect=self.patience.connect)
            try:
                trusting = not is_loopback(self.base)
                self._client = httpx.Client(headers=headers, auth=auth, timeout=timeout, trust_env=trusting)
            except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
                fix = "mend or unset HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
                raise Trouble(f"the settings for proxies or certificates cannot be used: {error}", fix) from error
        return self._client
