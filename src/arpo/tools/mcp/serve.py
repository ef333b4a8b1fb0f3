"""A tool box as an MCP server: the tools that a policy has, for whoever speaks the protocol.

Calls go through `ToolBox.call`, so limits, cleaning and counters are those of a rollout. What a policy would read comes
back as the result, an error of the call marked as one; a failure of the machinery is an error of the protocol that says
nothing of what is inside. Tools that keep state do so for one connection, as for one trajectory: over standard streams
that is the process; over HTTP it is a session, which only the initialize handshake opens. A server with such tools
therefore leaves it to clients to find out that they need one, by not answering `server/discover`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from arpo.errors import ToolDownError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.sessions import Session, Step, environment_of
from arpo.tools.toolbox import ToolBox

log = logging.getLogger(__name__)
IDLE = 1800.0
"""Seconds without a call after which what tools keep for a session is released."""
SESSION_HEADER = "mcp-session-id"
_DOWN = "the tool is out of order; try again later"
_WITH_EFFECT = (ToolStatus.OK, ToolStatus.TOOL_ERROR)


@dataclass(eq=False)
class _Visitor:
    """The state of one connection; one call at a time changes it."""

    session: Session = field(default_factory=Session)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: float = field(default_factory=time.monotonic)
    calls: int = 0


class Served:
    """Answers for a tool box. `seed`: of every call, so that equal calls of stateless tools have equal results."""

    def __init__(self, toolbox: ToolBox, version: str, seed: int = 0, *, over_http: bool) -> None:
        self.toolbox, self.seed, self._over_http = toolbox, seed, over_http
        self._environments = {
            tool.name: environment.name for tool in toolbox.tools if (environment := environment_of(tool)) is not None
        }
        self._visitors: dict[str, _Visitor] = {}
        self.server = Server("arpo", version=version, on_list_tools=self._list, on_call_tool=self._call)
        if over_http and self._environments:
            self.server.add_request_handler("server/discover", types.RequestParams, _no_discovery)

    async def _list(self, context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        tools = self.toolbox.tools
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.parameters))
                for tool in tools
            ]
        )

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        name, key = params.name, self._key(context)
        if key is None and name in self._environments:
            said = f"{name} keeps state between calls: connect with the initialize handshake, which opens a session"
            return _answer(ToolResult(ToolStatus.TOOL_ERROR, said))
        async with self._visit(key) as visitor:
            result = await self._run(name, params.arguments or {}, key or "", visitor)
        if result.status is ToolStatus.INFRA_ERROR:
            raise MCPError(types.INTERNAL_ERROR, _DOWN)
        return _answer(result)

    async def _run(self, name: str, arguments: dict[str, Any], key: str, visitor: _Visitor) -> ToolResult:
        context = ToolContext("mcp", key, self.seed, visitor.calls, session=visitor.session)
        visitor.calls += 1
        try:
            if name not in self._environments:
                return await self.toolbox.call(name, arguments, context)
            async with visitor.turn:
                result = await self.toolbox.call(name, arguments, context)
                if result.status in _WITH_EFFECT:
                    visitor.session.append(Step(self._environments[name], name, arguments, self.seed))
                return result
        except ToolDownError as error:
            log.warning("tool %s: %s", name, error)
            return ToolResult(ToolStatus.INFRA_ERROR, "")

    def _key(self, context: Any) -> str | None:
        """Which connection the call came by; None if it belongs to none."""
        if not self._over_http:
            return "pipe"
        key: str | None = context.request.headers.get(SESSION_HEADER) if context.request is not None else None
        return key

    @asynccontextmanager
    async def _visit(self, key: str | None) -> AsyncIterator[_Visitor]:
        if key is None:
            visitor = _Visitor()
            try:
                yield visitor
            finally:
                await visitor.session.close()
            return
        await self._release_idle()
        visitor = self._visitors.setdefault(key, _Visitor())
        visitor.last = time.monotonic()
        yield visitor
        visitor.last = time.monotonic()

    async def _release_idle(self) -> None:
        now = time.monotonic()
        for key in [key for key, one in self._visitors.items() if now - one.last > IDLE and not one.turn.locked()]:
            await self.leave(key)

    async def leave(self, key: str) -> None:
        """Release what tools keep for a connection."""
        visitor = self._visitors.pop(key, None)
        if visitor is not None:
            async with visitor.turn:
                await visitor.session.close()

    async def close(self) -> None:
        """Release everything, and close the tools."""
        for key in list(self._visitors):
            await self.leave(key)
        await self.toolbox.close()


def _answer(result: ToolResult) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=result.text)], is_error=result.status is not ToolStatus.OK
    )


async def _no_discovery(context: Any, params: types.RequestParams) -> types.EmptyResult:
    raise MCPError(types.METHOD_NOT_FOUND, "this server keeps sessions: use the initialize handshake")
