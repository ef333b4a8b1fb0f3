"""Servers as they are named in a file with `mcpServers`, and the variables in their settings.

The file is the one that desktop clients use, so it may hold what only they understand; such keys are known and left
alone, any other is a mistake. What a variable stands for is taken from the environment of this process, and what is
secret of it (headers, and whatever is named like a key) is struck out of every text that leaves this room: error
messages, logs, results.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arpo.errors import ToolSetupError
from arpo.tools.mcp.settings import McpSettings, ServerSettings
from arpo.tools.results import cap, clean

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_OWN = frozenset(ServerSettings.model_fields)
_CLIENTS_ONLY = frozenset({"type", "transport", "disabled", "autoApprove", "alwaysAllow", "description", "timeout"})
"""Keys of a server that are about a desktop client."""
_SECRET = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.IGNORECASE)
"""Names whose values are secret; those of headers are without a name like this, too."""
_SHORTEST_SECRET = 8
"""Characters below which a value is a word that may occur anywhere, and no secret."""
_HIDDEN = "[hidden]"
_TOLD = 1500
"""Characters of a failure that are told."""


@dataclass(frozen=True)
class Server:
    """One server with its variables filled in. `shown`: how it is reached, as the settings say it; `secrets`: values
    that nobody may read.
    """

    name: str
    settings: ServerSettings = field(repr=False)
    shown: str
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def hidden(self, text: str) -> str:
        """`text` without the secrets."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def told(self, text: str) -> str:
        """`text` of or about the server, fit for a log and a terminal."""
        return cap(clean(self.hidden(text)), _TOLD)


def servers(settings: McpSettings, environ: Mapping[str, str] | None = None) -> list[Server]:
    """The servers that the settings name. Raises ToolSetupError naming the file, the server and the key."""
    if settings.server is not None:
        found = {"server": settings.server}
    else:
        found = _chosen(_read(str(settings.config)), settings)
    values = os.environ if environ is None else environ
    return [_filled(Server(name, one, _shown(one)), values) for name, one in found.items()]


def _shown(settings: ServerSettings) -> str:
    """How a server is reached, without what may be secret of it: variables as they stand, no user, no query."""
    if settings.url is None:
        return str(settings.command)
    return re.sub(r"//[^/]*@", "//", settings.url.partition("?")[0])


def _chosen(found: dict[str, ServerSettings], settings: McpSettings) -> dict[str, ServerSettings]:
    missing = [name for name in settings.servers if name not in found]
    if missing:
        raise ToolSetupError(
            f"{settings.config}: servers names {', '.join(missing)}, and there is: {', '.join(found) or 'none'}"
        )
    return {name: one for name, one in found.items() if not settings.servers or name in settings.servers}


def _read(path: str) -> dict[str, ServerSettings]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolSetupError(f"{path}: cannot be read as JSON with mcpServers: {error}") from error
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise ToolSetupError(f"{path}: needs an object mcpServers with at least one server in it")
    return {name: _entry(path, name, entry) for name, entry in entries.items() if not _disabled(entry)}


def _disabled(entry: Any) -> bool:
    return isinstance(entry, dict) and bool(entry.get("disabled"))


def _entry(path: str, name: str, entry: Any) -> ServerSettings:
    if not isinstance(entry, dict):
        raise ToolSetupError(f"{path}: mcpServers.{name} is no object")
    if unknown := sorted(set(entry) - _OWN - _CLIENTS_ONLY):
        raise ToolSetupError(
            f"{path}: mcpServers.{name}: unknown key {', '.join(unknown)}; there is: {', '.join(sorted(_OWN))}"
        )
    if "sse" in (entry.get("type"), entry.get("transport")):
        raise ToolSetupError(
            f"{path}: mcpServers.{name}: the SSE transport is gone; use the server's streamable HTTP url"
        )
    try:
        return ServerSettings.model_validate({key: value for key, value in entry.items() if key in _OWN})
    except ValidationError as error:
        raise ToolSetupError(f"{path}: mcpServers.{name}: {_complaints(error)}") from None


def _complaints(error: ValidationError) -> str:
    """What is wrong, without the values, which may be secret."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}{': ' if one['loc'] else ''}{one['msg']}" for one in error.errors()
    )


def _filled(server: Server, values: Mapping[str, str]) -> Server:
    """The server with its variables replaced."""
    secrets: set[str] = set()
    where = f"MCP server {server.name!r}"

    def fill(key: str, text: str, secret: bool = False) -> str:
        def value(found: re.Match[str]) -> str:
            name, default = found.group(1), found.group(2)
            if name not in values and default is None:
                raise ToolSetupError(f"{where}: {key} needs the environment variable {name}, which is not set")
            if _SECRET.search(name):
                secrets.add(values.get(name, ""))
            return values.get(name, default or "")

        filled = _VARIABLE.sub(value, text)
        secrets.update([filled, filled.rpartition(" ")[2]] if secret else [])
        return filled

    one = server.settings
    changes: dict[str, Any] = {
        "command": None if one.command is None else fill("command", one.command),
        "url": None if one.url is None else fill("url", one.url),
        "cwd": None if one.cwd is None else fill("cwd", one.cwd),
        "args": tuple(fill("args", arg) for arg in one.args),
        "env": {key: fill(f"env.{key}", text, bool(_SECRET.search(key))) for key, text in one.env.items()},
        "headers": {key: fill(f"headers.{key}", text, True) for key, text in one.headers.items()},
    }
    hidden = frozenset(value for value in secrets if len(value) >= _SHORTEST_SECRET)
    return replace(server, settings=one.model_copy(update=changes), secrets=hidden)
