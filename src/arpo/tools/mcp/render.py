"""What a server answers, as text for a policy.

Text is all that a policy reads: an image, a sound or a resource becomes one line that says what it is. Texts are joined
by newlines. A server that answers with structured content alone is read as its JSON.
"""

import json
from typing import Any

from mcp import types

from arpo.tools.base import ToolResult, ToolStatus
from arpo.tools.mcp.servers import Server
from arpo.tools.results import cap

NOTHING = "(empty result)"
_ADDRESS = 200
"""Characters of an address or a name that are shown."""
_BASE64 = 3 / 4
"""Bytes per character."""


def render(answer: types.CallToolResult, server: Server) -> ToolResult:
    """An `is_error` answer is the call's own fault. What is secret of the server's settings is struck out."""
    text = "\n".join(_block(block) for block in answer.content)
    if not text and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    status = ToolStatus.TOOL_ERROR if answer.is_error else ToolStatus.OK
    return ToolResult(status, server.hidden(text) or NOTHING, data={"server": server.name}, empty=not text)


def _block(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ImageContent):
        return f"[image: {_short(block.mime_type)}, {_bytes(block.data)}]"
    if isinstance(block, types.AudioContent):
        return f"[audio: {_short(block.mime_type)}, {_bytes(block.data)}]"
    if isinstance(block, types.ResourceLink):
        return f"[resource: {_short(block.name)}, {_short(block.uri)}]"
    return _resource(block.resource)


def _resource(one: types.TextResourceContents | types.BlobResourceContents) -> str:
    size = f"{len(one.text)} characters" if isinstance(one, types.TextResourceContents) else _bytes(one.blob)
    return f"[resource: {_short(one.uri)}, {_short(one.mime_type or 'unknown type')}, {size}]"


def _bytes(base64: str) -> str:
    return f"{int(len(base64.rstrip('=')) * _BASE64)} bytes"


def _short(text: Any) -> str:
    """In one line."""
    return cap(" ".join(str(text).split()), _ADDRESS)
