"""`arpo serve-tools`: the configured tools as an MCP server."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from arpo.cli.options import Configs, Options, resolve
from arpo.errors import ConfigError, ToolSetupError

if TYPE_CHECKING:
    from arpo.config.load import Resolved
    from arpo.tools.mcp.serve import Served


def serve_tools(
    *config: Configs,
    transport: Annotated[
        Literal["stdio", "http"], Parameter(help="stdio: the client starts this command; http: streamable HTTP.")
    ] = "stdio",
    host: Annotated[str, Parameter(help="With http: address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="With http: port to listen on; 0: any that is free.")] = 8001,
    allow_host: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="With http: a further HOST:PORT that requests may be sent to (Host header)."),
    ] = (),
    key_variable: Annotated[
        str | None, Parameter(help="With http: environment variable of a key that requests must bear.")
    ] = None,
    options: Options | None = None,
) -> int:
    """Serve the configured tools over MCP until the client leaves, or until Ctrl-C or SIGTERM."""
    if transport == "http":
        return _over_http(resolve(config, options or Options()), host, port, allow_host, key_variable)
    _need_mcp()
    from arpo.tools.mcp.listening import over_pipes, reserved_streams

    with reserved_streams() as (inward, outward):
        served = _served(resolve(config, options or Options()), over_http=False)
        asyncio.run(over_pipes(served, inward, outward))
    return 0


def _over_http(resolved: "Resolved", host: str, port: int, hosts: tuple[str, ...], key_variable: str | None) -> int:
    _need_mcp()
    from arpo.tools.mcp.listening import allowed_hosts, over_http

    allowed_hosts(host, port, hosts)  # before anything is built
    key = _key(key_variable)
    served = _served(resolved, over_http=True)
    names = ", ".join(served.toolbox.names) or "no tools"

    def ready(url: str) -> None:
        print(f"arpo: {names} at {url}", file=sys.stderr, flush=True)

    asyncio.run(over_http(served, host, port, hosts, key, ready))
    return 0


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ConfigError(f"--key-variable {variable}: there is no such environment variable, or it is empty")
    return os.environ[variable]


def _need_mcp() -> None:
    try:
        import mcp.server.lowlevel  # noqa: F401
    except ImportError as error:
        raise ToolSetupError(f"serving tools: {error}; install it with: pip install 'arpo[mcp]'") from error


def _served(resolved: "Resolved", *, over_http: bool) -> "Served":
    from arpo import __version__
    from arpo.config.toolbox import build_toolbox
    from arpo.tools.mcp.serve import Served

    config = resolved.config
    return Served(build_toolbox(config), __version__, config.run.seed, over_http=over_http)
