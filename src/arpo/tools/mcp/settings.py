"""What a run says about the tools that it takes from MCP servers."""

from typing import Literal

from pydantic import Field, model_validator

from arpo.settings import Frozen
from arpo.tools.limited import LimitedSettings


class ServerSettings(Frozen):
    """How to reach one server: a `command` to start, which speaks over its standard streams, or a `url` (streamable
    HTTP). `${NAME}` and `${NAME:-default}` in all values stand for environment variables.

    A command gets HOME, LOGNAME, PATH, SHELL, TERM and USER of this process's environment, and `env`; nothing else.
    """

    command: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = Field(default=None, pattern=r"^(https?://|\$\{)")
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> "ServerSettings":
        if (self.command is None) == (self.url is None):
            raise ValueError("a server needs either a command or a url, and not both")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd are of a command; a url takes headers")
        if self.command is not None and self.headers:
            raise ValueError("headers are of a url; a command takes env")
        return self


class McpSettings(LimitedSettings):
    """The tools of MCP servers: of those in the file `config` (JSON with `mcpServers`), or of one `server`.

    `servers`: of the file's, only these. `tools`: of all the tools, only these, by the servers' own names. `prefix`:
    put before every name; `{server}` in it stands for the server's. `freeze`: a file that keeps what the servers
    offered the first time; whatever differs from it later is refused. `stateful`: the servers keep state between calls,
    so every trajectory gets a connection of its own; where it branches, the branch's own is brought up by replaying the
    calls so far, or branching is refused (`fork`). `repeatable`: equal calls may share one result, and a failed call
    may be made again; None: as each tool's annotations say. `connect_timeout`: seconds to start a server and list its
    tools. `server_concurrency`: calls at once of one server, all its tools together. `max_bytes`: of one message of a
    server.
    """

    type: Literal["mcp"] = "mcp"
    config: str | None = None
    server: ServerSettings | None = None
    servers: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    prefix: str = Field(default="", max_length=64)
    freeze: str | None = None
    stateful: bool = False
    fork: Literal["replay", "refuse"] = "replay"
    repeatable: bool | None = None
    timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    connect_timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    server_concurrency: int | None = Field(default=None, ge=1)
    max_bytes: int = Field(default=4 * 1024 * 1024, ge=4096)

    @model_validator(mode="after")
    def _one_source(self) -> "McpSettings":
        if (self.config is None) == (self.server is None):
            raise ValueError("type mcp needs either config (a JSON file with mcpServers) or server (one, inline)")
        if self.servers and self.config is None:
            raise ValueError("servers chooses among those of config; an inline server is the only one")
        if self.stateful and self.repeatable:
            raise ValueError("a call of a stateful server changes its state, so it cannot be repeatable")
        return self
