"""One connection with one server, and what holds it: everything here runs in the hub's loop.

A task holds the client for as long as the connection lasts, because what a client opens must be closed by the task that
opened it. It ends when it is told to leave, when the server says no more, or when the transport breaks; then whoever
still waits for an answer gets a failure that may be over in a moment, and the next call connects anew.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import mcp
from mcp import types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from arpo.errors import ToolSetupError
from arpo.tools.base import TransientError
from arpo.tools.mcp import http
from arpo.tools.mcp.lines import TOO_LARGE
from arpo.tools.mcp.servers import Server
from arpo.tools.mcp.stdio import Child, stdio

for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())  # what a server says is not for the terminal
PAGES = 100
"""Pages of tools that are read."""
_LEAVE = 1.5
"""Seconds that a connection has to end by itself."""
_LASTING = (types.INVALID_PARAMS, types.METHOD_NOT_FOUND, types.PARSE_ERROR)
"""Codes of failures that will not be over in a moment."""
_SESSION_GONE = (types.CONNECTION_CLOSED, types.INVALID_REQUEST)
"""Codes by which the SDK says that a session over HTTP is no more."""


class AnswerError(Exception):
    """A server answers otherwise than the protocol, or its own schema, says."""


class Connection:
    """A client of `server`, from now on. `sessions`: the server must keep a session for it.

    `opened` tells when it can be used, or why it cannot; `listed` are the server's tools.
    """

    def __init__(self, server: Server, *, timeout: float, max_bytes: int, sessions: bool) -> None:
        self.server = server
        self.listed: list[types.Tool] = []
        self.info: types.Implementation | None = None
        self.protocol = ""
        self._timeout, self._max_bytes, self._sessions = timeout, max_bytes, sessions
        self._leave = asyncio.Event()
        self._under_way, self._retired = 0, False
        self._child, self._door = Child(), http.Door(max_bytes)
        self._client: mcp.Client | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._holder = asyncio.get_running_loop().create_task(self._hold())

    @property
    def lost(self) -> bool:
        """It is of no more use."""
        return self._holder.done() or self._leave.is_set() or self._retired

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call `then` once it has ended."""
        self._holder.add_done_callback(lambda _: then())

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """What the server answers. Raises TransientError, or AnswerError for what will not be over in a moment."""
        if self.lost or self._client is None:
            raise TransientError(self._about("the connection is lost"))
        self._under_way += 1
        try:
            return await self._client.call_tool(name, dict(arguments))
        except MCPError as error:
            return await self._refused(name, error)
        except Exception as error:  # noqa: BLE001 - an answer that is none, by whatever the SDK says so
            failure = TransientError if self.lost or isinstance(error, OSError) else AnswerError
            raise failure(self._about(f"{name}: {type(error).__name__}: {error}")) from None
        finally:
            self._under_way -= 1
            if self._retired and not self._under_way:
                self._leave.set()

    async def _refused(self, name: str, error: MCPError) -> types.CallToolResult:
        """An error in the protocol. What is about these arguments is for the caller to mend, as long as the tool is
        still what it was.
        """
        if error.code == types.INVALID_PARAMS and await self._still_offers(name):
            return _at_fault(error.message)
        if error.code == TOO_LARGE or http.too_large(error.message):
            return _at_fault(f"The answer is longer than {self._max_bytes} bytes; ask for less at once.")
        if error.code in _LASTING:
            raise AnswerError(self._about(f"{name}: {error.message}"))
        if self.server.settings.url is not None and error.code in _SESSION_GONE:
            self._retired = True  # for new calls; those under way may still have their answers
        said, after = self._door.told(error.message)
        raise TransientError(self._about(f"{name}: {said}"), after)

    async def _still_offers(self, name: str) -> bool:
        try:
            now = await self.tools()
        except Exception:  # noqa: BLE001 - then it is the server that is at fault
            return False
        return [tool for tool in now if tool.name == name] == [tool for tool in self.listed if tool.name == name]

    async def tools(self) -> list[types.Tool]:
        """All tools that the server offers now."""
        assert self._client is not None
        found: list[types.Tool] = []
        cursor = None
        for _ in range(PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise ToolSetupError(self._about(f"it lists more than {PAGES} pages of tools"))

    async def close(self) -> None:
        """End it, and the server if it was started for it. Takes about a second at the most."""
        self._leave.set()
        if self.opened.done():
            await asyncio.wait((self._holder,), timeout=_LEAVE)
        if not self._holder.done():
            self._holder.cancel()
            await asyncio.wait((self._holder,), timeout=_LEAVE)

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout):
                    await self._open(stack)
                self.opened.set_result(None)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - whatever breaks a transport ends the connection, and is told
            self._failed(error)
        finally:
            self._leave.set()
            if not self.opened.done():
                self.opened.set_exception(TransientError(self._about("connecting was given up")))

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self.server.settings
        if settings.url is None:
            transport: Any = self._standard_streams()
            self._client = await stack.enter_async_context(mcp.Client(transport))
        else:
            client = http.client(settings.headers, self._timeout, self._door)
            await stack.enter_async_context(client)
            transport = streamable_http_client(settings.url, http_client=client, max_sse_event_size=self._max_bytes)
            mode = "legacy" if self._sessions else "auto"
            self._client = await stack.enter_async_context(mcp.Client(transport, mode=mode))
            if self._sessions and not self._door.sessions:
                raise ToolSetupError(self._about("it keeps no sessions over HTTP, so it cannot be stateful"))
        self.listed, self.info = await self.tools(), self._client.server_info
        self.protocol = self._client.protocol_version

    def _standard_streams(self) -> Any:
        one = self.server.settings
        command = (str(one.command), *one.args)
        return stdio(command, one.env, one.cwd, self._max_bytes, self._child, self._leave.set)

    def _failed(self, error: Exception) -> None:
        first = _first(error)
        if not self.opened.done():
            self.opened.set_exception(first if isinstance(first, ToolSetupError) else self._unreachable(first))

    def _unreachable(self, error: BaseException) -> TransientError:
        said = f"no answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
        said, after = self._door.told(said or type(error).__name__)
        end = self._child.told()
        return TransientError(self._about("; ".join(part for part in (said, end) if part)), after)

    def _about(self, text: str) -> str:
        return f"MCP server {self.server.name!r} ({self.server.shown}): {self.server.told(text)}"


def _at_fault(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _first(error: BaseException) -> BaseException:
    """The first failure of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Link:
    """A connection that is opened when needed, and opened again when lost.

    `check` is given every new connection; what it raises makes the connection useless.
    """

    def __init__(self, open_: Callable[[], Connection], check: Callable[[Connection], None]) -> None:
        self._open, self._check = open_, check
        self._checked: Connection | None = None
        self.current: Connection | None = None

    @property
    def listed(self) -> list[types.Tool]:
        """What the server offers, as far as it is known."""
        return [] if self.current is None else self.current.listed

    async def ready(self) -> Connection:
        """A connection that can be used. Raises TransientError, or what `check` raises."""
        if self.current is None or self.current.lost:
            self.current = self._open()
        current = self.current
        await asyncio.shield(current.opened)
        if current is not self._checked:
            self._check(current)
            self._checked = current
        return current

    async def close(self) -> None:
        if self.current is not None:
            await self.current.close()
