"""Small messages between the processes of the launcher: one JSON object per packet, file descriptors alongside.

Both ends of every such socket are ours: sandboxed code never holds one.
"""

import array
import json
import socket
from collections.abc import Sequence
from typing import Any

_LONGEST = 65536
_MOST_DESCRIPTORS = 8


def send(sock: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises OSError if the other end is gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([json.dumps(message).encode()], rights)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message with its descriptors, which are now ours; None at the end. Raises OSError."""
    received = array.array("i")
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * received.itemsize)
    data, ancillary, _, _ = sock.recvmsg(_LONGEST, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    if not data:
        return None
    return json.loads(data), list(received)
