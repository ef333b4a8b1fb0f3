"""Speaks with a server over streamable HTTP, through the SDK's transport on a client of ours that counts bytes.

Headers may hold keys, so they go to the server's own origin alone (the SDK follows no redirect elsewhere). Proxies of
the environment are not used. Bodies are asked for uncompressed and counted as they come: one event or one answer may
have `max_bytes`, and a compressed body, which could become anything, is refused.
"""

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from arpo.retry import retry_after

_ERROR = 400

_OURS, _THEIRS = "longer than max_bytes", "byte limit"
"""Words by which the client and the SDK say that an answer was too long."""


class TooLargeError(httpx2.StreamError):
    """The server sends more than is read."""


def too_large(message: str) -> bool:
    """Whether the SDK's message about a failed request comes of an answer that was too long."""
    return message.endswith(_OURS) or (message.startswith("SSE stream failed") and _THEIRS in message)


@dataclass
class Door:
    """What is known of a server from its answers. `limit`: bytes of one; `sessions`: it has given out a session id;
    `status`: of the last answer that was an error, `after`: the seconds that it asked to wait.
    """

    limit: int
    sessions: bool = False
    status: int | None = None
    after: float | None = None

    def note(self, response: httpx2.Response) -> None:
        self.sessions |= "mcp-session-id" in response.headers
        if response.status_code >= _ERROR:
            self.status = response.status_code
            self.after = retry_after(response.headers.get("retry-after"), time.time())

    def told(self, message: str) -> tuple[str, float | None]:
        """A failure's message with what HTTP says of it, and the seconds to wait; each error is told once."""
        status, after = self.status, self.after
        self.status = self.after = None
        return (message if status is None else f"{message} (HTTP {status})"), after


class _Counted(httpx2.AsyncByteStream):
    """A body that ends with an error when it grows beyond the limit."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._left = stream, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise TooLargeError(f"an answer is {_OURS}")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Transport(httpx2.AsyncHTTPTransport):
    """Counts, and keeps the door informed."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self._door = door

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self._door.note(response)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise TooLargeError("the answer is compressed although it was asked for as it is")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Counted(response.stream, self._door.limit)
        return response


def client(headers: Mapping[str, str], connect_timeout: float, door: Door) -> httpx2.AsyncClient:
    """A client for one server. Reading has no time limit of its own: the calls have, and streams stay open."""
    timeout = httpx2.Timeout(connect_timeout, read=None)
    both = {"accept-encoding": "identity", **headers}
    return httpx2.AsyncClient(transport=_Transport(door), headers=both, timeout=timeout, trust_env=False)
