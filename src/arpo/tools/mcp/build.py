"""From settings to the tools of MCP servers.

Every server is reached once while the tools are built, or there would be no names and schemas to build them from. That
happens in the hub's loop, which the connections then stay in: a short-lived loop of our own would have to end what it
opened, so that every server would be started twice, and cannot be run at all where another one runs already.
"""

import importlib
from collections.abc import Sequence

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.mcp.settings import McpSettings
from arpo.tools.registry import Surroundings


def mcp(settings: McpSettings, around: Surroundings) -> Sequence[Tool]:
    """All chosen tools of all chosen servers. Raises ToolSetupError naming the server and the remedy."""
    try:
        importlib.import_module("mcp.client.streamable_http")
    except ImportError as error:
        raise ToolSetupError(f"tools of type mcp: {error}; install it with: pip install 'arpo[mcp]'") from error
    from arpo.tools.mcp.entry import Entry

    return Entry(settings).tools()
