"""How clients reach a served tool box: over this process's standard streams, or over HTTP.

Over the standard streams, standard output belongs to the protocol from the first moment on: what anything else prints,
child processes included, goes to standard error. Over HTTP, requests are checked for where they come from: a page in
somebody's browser can send requests to a loopback port, but it cannot choose the Host and Origin that they carry.
"""

import asyncio
import hmac
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from arpo.errors import ConfigError, ToolSetupError
from arpo.tools.mcp.lines import EndlessLineError, Lines
from arpo.tools.mcp.serve import SESSION_HEADER, Served

PATH = "/mcp"
_MAX_BYTES = 4 * 1024 * 1024
_PIECE = 65536
_GRACE = 1
"""Seconds that open requests have when the server is asked to end."""


@contextmanager
def reserved_streams() -> Iterator[tuple[int, int]]:
    """Descriptors for the protocol alone; until they are given back, 0 reads nothing and 1 writes to standard error."""
    sys.stdout.flush()
    inward, outward = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    try:
        yield inward, outward
    finally:
        sys.stdout.flush()
        os.dup2(inward, 0)
        os.dup2(outward, 1)
        os.close(inward)
        os.close(outward)


async def over_pipes(served: Served, inward: int, outward: int) -> None:
    """Serve one client until it ends its output, or until this process is asked to end."""
    with _ending_on_signals(asyncio.current_task()):
        try:
            async with _messages(inward, outward) as (read, write):
                await served.server.run(read, write, served.server.create_initialization_options())
        except asyncio.CancelledError:
            pass
        finally:
            await served.close()


@contextmanager
def _ending_on_signals(task: "asyncio.Task[Any] | None") -> Iterator[None]:
    assert task is not None
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for one in signals:
        loop.add_signal_handler(one, task.cancel)
    try:
        yield
    finally:
        for one in signals:
            loop.remove_signal_handler(one)


@asynccontextmanager
async def _messages(inward: int, outward: int) -> AsyncIterator[tuple[Any, Any]]:
    """Streams of messages over two descriptors. The SDK's own read in a thread, which no signal can interrupt."""
    reader, writer = await _opened(inward, outward)
    heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_say = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen() -> None:
        lines = Lines(_MAX_BYTES)
        async with heard:
            try:
                while piece := await reader.read(_PIECE):
                    for message in lines.feed(piece):
                        await heard.send(SessionMessage(message))
            except (EndlessLineError, ConnectionError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def speak() -> None:
        try:
            async with to_say:
                async for said in to_say:
                    writer.write(said.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    await writer.drain()
        except ConnectionError:
            heard.close()  # whoever does not listen any more has nothing more to say either

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        group.start_soon(speak)
        yield incoming, outgoing
        group.cancel_scope.cancel()


async def _opened(inward: int, outward: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(inward), "rb"))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(os.dup(outward), "wb")
        )
    except ValueError:
        raise ConfigError(
            "serving over the standard streams needs pipes: let an MCP client start this command, or use "
            "--transport http"
        ) from None
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def allowed_hosts(host: str, port: int, named: Sequence[str]) -> list[str]:
    """What the Host header of a request may be. ConfigError if others can reach the server and none is named."""
    local = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    if not local and not named:
        raise ConfigError(
            f"--host {host} can be reached from elsewhere: say with --allow-host under which names (such as "
            f"{socket.gethostname()}:{port}), and think of --key-variable"
        )
    return [f"{one}:*" for one in local] + list(named)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def over_http(
    served: Served, host: str, port: int, hosts: Sequence[str], key: str | None, ready: Callable[[str], None]
) -> None:
    """Serve until this process is asked to end. `hosts`: more that the Host header may be; `key`: what a request must
    bear. `ready` is told the URL.
    """
    uvicorn = _uvicorn()
    allowed = allowed_hosts(host, port, hosts)
    security = TransportSecuritySettings(
        allowed_hosts=allowed, allowed_origins=[f"{scheme}://{one}" for one in allowed for scheme in ("http", "https")]
    )
    app = served.server.streamable_http_app(streamable_http_path=PATH, transport_security=security)
    config = uvicorn.Config(
        _Door(app, served, key), log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE
    )
    for name in ("mcp.server.streamable_http", "uvicorn.error"):
        logging.getLogger(name).addFilter(_no_client_gone)
    with _listener(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}{PATH}")
        try:
            await _serve(uvicorn, config, listener)
        finally:
            await served.close()


def _no_client_gone(record: logging.LogRecord) -> bool:
    """Keeps out of the log that a client went away while its request was under way: that is no fault of anybody's."""
    return not _says_gone(record.exc_info[1] if record.exc_info else None)


def _says_gone(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_says_gone, error.exceptions))
    if isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
        return True
    return error is not None and _says_gone(error.__cause__ or error.__context__)


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise ToolSetupError(f"serving over HTTP: {error}; install it with: pip install 'arpo[mcp,serve]'") from error
    return uvicorn


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there: {error}") from error


async def _serve(uvicorn: Any, config: Any, listener: socket.socket) -> None:
    """Until a signal; uvicorn by itself would raise it once more when it is done, before the tools are closed."""

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(config)
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for one in signals:
        loop.add_signal_handler(one, setattr, server, "should_exit", True)
    try:
        await server.serve(sockets=[listener])
    finally:
        for one in signals:
            loop.remove_signal_handler(one)


class _Door:
    """Lets in requests that bear the key, and notes the end of sessions."""

    def __init__(self, app: Any, served: Served, key: str | None) -> None:
        self._app, self._served = app, served
        self._wanted = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and not self._may(headers.get(b"authorization", b"")):
            await _refuse(send)
            return
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "DELETE":
            await self._served.leave(headers.get(SESSION_HEADER.encode(), b"").decode("latin-1"))

    def _may(self, given: bytes) -> bool:
        return self._wanted is None or hmac.compare_digest(given, self._wanted)


async def _refuse(send: Any) -> None:
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b"this server asks for a key"})
