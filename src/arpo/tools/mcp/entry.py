"""One `[[tools]]` entry of type mcp: its servers, what they offer, their connections and their end.

Tools that nobody closes, because building their neighbours failed or because the program just ends, are closed when
they are forgotten, or at the exit of the program.
"""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool, TransientError
from arpo.tools.limits import Gate
from arpo.tools.mcp.connection import AnswerError, Connection, Link
from arpo.tools.mcp.hub import Hub
from arpo.tools.mcp.offers import NAME, Offer, check_frozen, check_same, offers
from arpo.tools.mcp.servers import Server, servers
from arpo.tools.mcp.settings import McpSettings
from arpo.tools.mcp.tool import McpTool, ServerEnvironment, Source
from arpo.tools.results import clean

_SINCE = "the start of this run"


class Entry:
    """What the tools of one entry have in common."""

    def __init__(self, settings: McpSettings) -> None:
        self.settings = settings
        self.servers = servers(settings)
        self.hub = Hub("arpo mcp")
        self._offers: dict[str, dict[str, Offer]] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._connections: set[Connection] = set()
        self._links = {one.name: Link(self._opener(one), partial(self._note, one)) for one in self.servers}
        weakref.finalize(self, _forgotten, self.hub, self._connections)

    def tools(self) -> Sequence[Tool]:
        """Reach all servers and make their tools. Raises ToolSetupError; nothing is left running then."""
        try:
            self.hub.run(self._reach_all())
            self._check()
            made = [tool for server in self.servers for tool in self._made(server)]
            if self.settings.stateful:
                self.hub.run(_end_all(self._connections))  # every trajectory has its own
        except BaseException:
            self.hub.shut(_end_all(self._connections))
            raise
        return made

    async def _reach_all(self) -> None:
        """Reach the servers side by side; the first that fails stands for all."""
        outcomes = await asyncio.gather(*(link.ready() for link in self._links.values()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, TransientError | AnswerError):
                raise ToolSetupError(f"{outcome}; check that it can be started or reached from here") from None
            if isinstance(outcome, BaseException):
                raise outcome

    def _opener(self, server: Server) -> Callable[[], Connection]:
        """Opens connections; without a reference to the entry, which lives no longer than its tools."""
        one, connections = self.settings, self._connections

        def open_() -> Connection:
            connection = Connection(server, timeout=one.connect_timeout, max_bytes=one.max_bytes, sessions=one.stateful)
            connections.add(connection)
            connection.when_ended(lambda: connections.discard(connection))
            return connection

        return open_

    def _note(self, server: Server, connection: Connection) -> None:
        """The first connection says what the server offers; every later one must say the same."""
        now = offers(server.name, connection.listed, self.settings.tools)
        before = self._offers.setdefault(server.name, now)
        check_same(server.name, before, now, _SINCE, "restart the run to take what it offers now")
        info = connection.info
        self._facts[server.name] = {
            "server": server.name,
            "reached": clean(server.shown),
            "identity": clean(f"{info.name} {info.version}") if info is not None else "",
            "protocol": clean(connection.protocol),
        }

    def _check(self) -> None:
        """Refuse an entry that gives no tools or lacks some, and servers that changed since they were frozen."""
        found = {name for tools in self._offers.values() for name in tools}
        where = self.settings.config or "the inline server"
        if missing := [name for name in self.settings.tools if name not in found]:
            raise ToolSetupError(f"type mcp ({where}): tools names {', '.join(missing)}, and there is: {self._all()}")
        if not found:
            raise ToolSetupError(f"type mcp ({where}): no server offers a tool; leave the entry out")
        if self.settings.freeze is not None:
            check_frozen(self.settings.freeze, self._offers)

    def _all(self) -> str:
        names = [clean(tool.name) for link in self._links.values() for tool in link.listed]
        return ", ".join(names) or "none"

    def _made(self, server: Server) -> list[McpTool]:
        one = self.settings
        prefix = one.prefix.replace("{server}", server.name)
        names = {prefix + name: name for name in self._offers[server.name]}
        for name in names:
            if not NAME.fullmatch(name):
                raise ToolSetupError(f"type mcp: {name!r} is no name of a tool; change prefix = {one.prefix!r}")
        source = Source(server, self.hub, Gate(one.server_concurrency, None), names, self._links[server.name])
        environment = None
        if one.stateful:
            environment = ServerEnvironment(source, f"mcp {prefix}{server.name}", one.fork, self._own(server))
        return [self._tool(name, self._offers[server.name][own], source, environment) for name, own in names.items()]

    def _tool(self, name: str, offer: Offer, source: Source, environment: ServerEnvironment | None) -> McpTool:
        wish = self.settings.repeatable
        repeatable = environment is None and (offer.repeatable if wish is None else wish)
        facts = self._facts[source.server.name]
        return McpTool(
            name, offer, source, repeatable=repeatable, facts=facts, close=self.close, environment=environment
        )

    def _own(self, server: Server) -> Callable[[], Link]:
        """A trajectory's own connection, which must offer what was offered."""
        return lambda: Link(self._opener(server), partial(self._note, server))

    async def close(self) -> None:
        """End all connections, and the servers that were started for them; a later call opens them anew."""
        await self.hub.close(_end_all(self._connections))


async def _end_all(connections: set[Connection]) -> None:
    await asyncio.gather(*(connection.close() for connection in list(connections)))


def _forgotten(hub: Hub, connections: set[Connection]) -> None:
    hub.shut(_end_all(connections))
