"""Speaks with a server over streamable HTTP, through the SDK's transport on a client of ours that counts bytes.

Headers may hold keys, so they go to the server's own origin alone (the SDK follows no redirect elsewhere). Proxies of
the environment are not used. Bodies are asked for uncompressed and counted as they come: one event or one answer may
have `max_bytes`, and a compressed body, which could become anything, is refused.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2

TOO_LARGE = "longer than max_bytes"


class TooLargeError(httpx2.StreamError):
    """The server sends more than is read."""


class _Counted(httpx2.AsyncByteStream):
    """A body that ends with an error when it grows beyond the limit."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream, self._left = stream, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise TooLargeError(f"an answer is {TOO_LARGE}")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Transport(httpx2.AsyncHTTPTransport):
    """Counts; `sessions` tells whether the server has given out a session id."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.sessions = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.sessions |= "mcp-session-id" in response.headers
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise TooLargeError("the answer is compressed although it was asked for as it is")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            stream: Any = response.stream
            response.stream = _Counted(stream, self._limit)
        return response


def client(headers: Mapping[str, str], connect_timeout: float, max_bytes: int) -> tuple[httpx2.AsyncClient, _Transport]:
    """A client for one server. Reading has no time limit of its own: the calls have, and streams stay open."""
    transport = _Transport(max_bytes)
    timeout = httpx2.Timeout(connect_timeout, read=None)
    both = {"accept-encoding": "identity", **headers}
    return httpx2.AsyncClient(transport=transport, headers=both, timeout=timeout, trust_env=False), transport
