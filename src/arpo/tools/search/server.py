"""A retriever over an index on this machine, in the protocol of Search-R1's.

    POST /retrieve {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\\"Title\\"\\ntext"}, "score": 12.5}]]}

and without `return_scores` the documents alone, a list per query in either case. `GET /health` says what is served.
What a request may ask for is bounded before anything is computed; what is wrong with one is said in JSON, in a sentence
under `detail`. There is no login: whoever reaches the address may search, so unless told otherwise it is the loopback
one.

Queries run in threads, so that a long one holds up no other's connection; they read mapped pages, so further servers
over the same folder cost next to no memory.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arpo.errors import ConfigError, ToolSetupError
from arpo.tools.search.corpus import Hit
from arpo.tools.search.index import Index
from arpo.tools.search.providers.search_server import MAX_QUERY

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 4 << 20
"""Bytes of a request."""
MAX_QUERIES = 512
"""Of a request."""
MAX_TOP_K = 100
_PATIENCE = 30.0
"""Seconds for the body of a request to come."""
_CUT_OFF = (408, 413)
"""Answers after which whoever goes on sending is not listened to."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be answered."""

    queries: Sequence[str]
    top_k: int
    scores: bool


class RequestError(Exception):
    """What is wrong with a request, in a sentence."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


def read_request(body: bytes, default_top_k: int) -> Asked:
    """The request in `body`. Raises RequestError."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not JSON: {error}.", 400) from error
    if not isinstance(asked, dict):
        raise RequestError('The body must be an object like {"queries": ["..."], "topk": 3, "return_scores": true}.')
    scores = asked.get("return_scores", False)
    if not isinstance(scores, bool):
        raise RequestError("return_scores must be true or false.")
    return Asked(_queries(asked), _top_k(asked, default_top_k), scores)


def _queries(asked: Mapping[str, Any]) -> Sequence[str]:
    queries = asked.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise RequestError("queries must be a list of strings.")
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise RequestError(f"queries must hold 1 to {MAX_QUERIES} queries, not {len(queries)}.")
    longest = max(map(len, queries))
    if longest > MAX_QUERY:
        raise RequestError(f"A query may have {MAX_QUERY} characters; the longest has {longest}.")
    return queries


def _top_k(asked: Mapping[str, Any], default: int) -> int:
    top_k = asked.get("topk")
    if top_k is None:
        return default
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= MAX_TOP_K:
        raise RequestError(f"topk must be a whole number from 1 to {MAX_TOP_K}.")
    return top_k


def answer(asked: Asked, index: Index) -> dict[str, Any]:
    """What the server says."""
    found = [index.query(query, asked.top_k) for query in asked.queries]
    if asked.scores:
        return {"result": [[{"document": _document(hit), "score": hit.score} for hit in hits] for hits in found]}
    return {"result": [[_document(hit) for hit in hits] for hits in found]}


def _document(hit: Hit) -> dict[str, str]:
    document = hit.document
    return {"id": document.id, "contents": f'"{document.title}"\n{document.text}'}


def application(index: Index, default_top_k: int = 3) -> "Starlette":
    """The server as an ASGI application. Raises ToolSetupError naming the extra."""
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.exceptions import HTTPException
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise ToolSetupError("a search server needs starlette and uvicorn: pip install 'arpo[serve]'") from error

    async def retrieve(request: "Request") -> "Response":
        asked = read_request(await _body(request), default_top_k)
        return JSONResponse(await run_in_threadpool(answer, asked, index))

    async def health(_: "Request") -> "Response":
        return JSONResponse({"status": "ok", "index": index.kind, "passages": len(index)})

    async def refused(_: "Request", error: Exception) -> "Response":
        status = error.status if isinstance(error, RequestError) else getattr(error, "status_code", 500)
        said = str(error) if isinstance(error, RequestError) else getattr(error, "detail", "The search failed.")
        return JSONResponse({"detail": said}, status, {"Connection": "close"} if status in _CUT_OFF else None)

    return Starlette(
        routes=[Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health)],
        exception_handlers={RequestError: refused, HTTPException: refused, Exception: refused},
    )


async def _body(request: "Request") -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise RequestError(f"The body may have {MAX_BODY} bytes.", 413)
    except TimeoutError as error:
        raise RequestError(f"The body did not come within {_PATIENCE:g} s.", 408) from error
    return bytes(body)


def serve(index: Index, host: str, port: int, default_top_k: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `port` 0 takes a free one; `ready` is told the address of the endpoint.

    Raises ToolSetupError naming the extra, ConfigError for an address that cannot be had.
    """
    app = application(index, default_top_k)
    try:
        import uvicorn
    except ImportError as error:
        raise ToolSetupError("a search server needs starlette and uvicorn: pip install 'arpo[serve]'") from error
    with _listening(host, port) as listener:
        ready(f"http://{_shown(host)}:{listener.getsockname()[1]}/retrieve")
        with _ended_by_signals():
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """uvicorn ends on SIGINT or SIGTERM and then sends itself the signal again; here that is how it is meant to end."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}, port {port} ({error}); choose another --port or --host") from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether all addresses of `host` are this machine's own."""
    import ipaddress

    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
