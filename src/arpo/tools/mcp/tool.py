"""A tool of a server as a tool of a run.

Waiting for a connection, or for one's turn at the server, is not the call's time. A stateful server is an environment:
each trajectory has a connection, and so a process or a session of the server, of its own.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.limits import Gate
from arpo.tools.mcp.connection import Connection, Link
from arpo.tools.mcp.hub import Hub
from arpo.tools.mcp.offers import Offer
from arpo.tools.mcp.render import render
from arpo.tools.mcp.servers import Server
from arpo.tools.running import off_the_clock
from arpo.tools.sessions import Fork, run_in_session


class Source:
    """One server behind its tools. `names`: the server's own, by the tools'. `link` is None if it is stateful."""

    def __init__(self, server: Server, hub: Hub, gate: Gate, names: Mapping[str, str], link: Link | None) -> None:
        self.server, self.hub, self.gate, self.names, self.link = server, hub, gate, dict(names), link

    async def call(self, tool: str, arguments: Mapping[str, Any], connection: Connection | None) -> ToolResult:
        """One call, on the shared connection if None is given, after waiting for its turn."""
        if (unsendable := _unsendable(arguments)) is not None:
            return ToolResult(ToolStatus.TOOL_ERROR, unsendable)
        with off_the_clock():
            await self.gate.enter()
        try:
            used = connection or await self._shared()
            answer = await self.hub.do(used.call(self.names[tool], arguments))
        finally:
            self.gate.leave()
        return render(answer, self.server)

    async def _shared(self) -> Connection:
        assert self.link is not None
        with off_the_clock():
            return await self.hub.do(self.link.ready())


def _unsendable(arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with arguments that JSON in UTF-8 cannot carry, though a policy can write them; None if nothing."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "The arguments hold half of a surrogate pair, which is no text."
    except ValueError:
        return "The arguments hold a number that is not finite."
    return None


class ServerEnvironment:
    """The state that a server keeps for one trajectory."""

    def __init__(self, source: Source, name: str, fork: Fork, open_: Callable[[], Link]) -> None:
        self.name, self.fork = name, fork
        self._source, self._open = source, open_

    async def start(self, context: ToolContext) -> Link:
        link = self._open()
        with off_the_clock():
            await self._source.hub.do(link.ready())
        return link

    async def step(self, state: Link, tool: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Raises TransientError if the connection is lost: what the server kept for it is gone with it."""
        return await self._source.call(tool, arguments, state.current)

    def copy(self, state: Any) -> Any:
        raise TypeError("what a server keeps cannot be copied; it can be replayed")

    async def end(self, state: Link) -> None:
        async def leave() -> None:
            self._source.hub.spare(state.close())

        await self._source.hub.do(leave())


class McpTool:
    """One tool of a server."""

    def __init__(
        self,
        name: str,
        offer: Offer,
        source: Source,
        *,
        repeatable: bool,
        facts: Mapping[str, Any],
        close: Callable[[], Any],
        environment: ServerEnvironment | None = None,
    ) -> None:
        self.name, self.description, self.parameters = name, offer.description, offer.parameters
        self.stateless = self.idempotent = repeatable
        self.environment = environment
        self._source, self._facts, self._close = source, {**facts, "schema": offer.digest}, close

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | str:
        """Raises TransientError if the server cannot be reached or breaks off."""
        if self.environment is None:
            return await self._source.call(self.name, arguments, None)
        return await run_in_session(self.environment, self.name, arguments, context)

    def facts(self) -> dict[str, Any]:
        """What stands behind the tool, for the record of a run."""
        return dict(self._facts)

    async def close(self) -> None:
        """End the connections of all tools of this entry, and the servers that were started for them."""
        await self._close()
