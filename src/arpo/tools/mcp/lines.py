"""Messages from a stream of bytes, one a line, of bounded size.

A line beyond the limit is not kept, but its two ends are: the request that it answers is named at one of them. So the
one call that asked for too much hears so, and the connection lives on for the others. An answer that is no JSON (half a
surrogate pair, say) is told in the same way.
"""

import re

from mcp import types
from mcp.types import jsonrpc_message_adapter

TOO_LARGE = -32098
"""Code of the error that stands for an answer beyond the limit; ours alone, it is never sent."""
_END = 200
"""Bytes of either end that are kept."""
_AT_HEAD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_AT_TAIL = re.compile(rb',\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
_MOST = 16
"""Limits that one line may have before nothing sensible can be expected of the stream any more."""


class EndlessLineError(Exception):
    """A line that does not end."""


class Lines:
    """Takes pieces, gives messages. `limit`: bytes of one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._tail = b""
        self._size = 0

    def feed(self, piece: bytes) -> list[types.JSONRPCMessage]:
        """The messages that end in this piece. Raises EndlessLineError."""
        *ended, rest = piece.split(b"\n")
        messages = []
        for part in ended:
            self._add(part)
            if (message := self._taken()) is not None:
                messages.append(message)
        self._add(rest)
        return messages

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._tail = (self._tail + part[-_END:])[-_END:]
        room = len(part) if self._size <= self._limit else max(_END - len(self._kept), 0)
        self._kept += part[:room]
        if self._size > self._limit:
            del self._kept[_END:]
        if self._size > _MOST * self._limit:
            raise EndlessLineError(f"it says more than {_MOST} times max_bytes in one line")

    def _taken(self) -> types.JSONRPCMessage | None:
        """The line that has just ended, as a message; None if it is none, as servers print greetings too."""
        kept, tail, size = bytes(self._kept), self._tail, self._size
        self._kept, self._tail, self._size = bytearray(), b"", 0
        if size > self._limit:
            return _instead(kept, tail, TOO_LARGE, "the answer is longer than max_bytes")
        try:
            return jsonrpc_message_adapter.validate_json(kept, by_name=False)
        except ValueError:
            return _instead(kept, tail, types.PARSE_ERROR, "the answer cannot be read as JSON")


def _instead(head: bytes, tail: bytes, code: int, message: str) -> types.JSONRPCError | None:
    """An error in place of the answer; None if it does not say what it answers."""
    found = _AT_HEAD.match(head) or _AT_TAIL.search(tail)
    if found is None:
        return None
    error = types.ErrorData(code=code, message=message)
    return types.JSONRPCError(jsonrpc="2.0", id=int(found.group(1)), error=error)
