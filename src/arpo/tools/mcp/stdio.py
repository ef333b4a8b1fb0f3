"""Speaks with a server over its standard streams, one JSON message a line.

The SDK has such a transport; this one differs where a training run needs it: a message has a size limit (a line without
end would otherwise fill the memory), what the server writes to standard error is kept for error messages instead of
reaching the terminal, whoever holds the connection is told when the server is gone, ending it takes a second at the
most, and nothing of it survives this process (`guard`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from arpo.tools.mcp import guard
from arpo.tools.mcp.lines import EndlessLineError, Lines

_PIECE = 65536
"""Bytes that are read at once."""
_TAIL = 2000
"""Bytes of standard error that are kept."""
_LAST_WORDS = 0.2
"""Seconds to read what the server wrote before it ended."""
_PATIENCE = (0.5, 0.4)
"""Seconds for the server to end after its input has ended, and after it was asked to."""


@dataclass(eq=False)
class Child:
    """A server that was started: how it ended, as far as it is known."""

    process: asyncio.subprocess.Process | None = None
    fault: str = ""
    tail: bytearray = field(default_factory=bytearray)

    def told(self) -> str:
        """What can be said of its end; empty if nothing."""
        code = self.process.returncode if self.process is not None else None
        parts = [self.fault] if self.fault else []
        parts += [] if code is None else [f"it ended with exit code {code}"]
        text = self.tail.decode(errors="replace").strip()
        return "; ".join(parts) + (f"; it said:\n{text}" if text else "")


@asynccontextmanager
async def stdio(
    command: tuple[str, ...],
    env: Mapping[str, str],
    cwd: str | None,
    max_bytes: int,
    child: Child,
    on_end: Callable[[], None],
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Start the command and yield its two streams of messages; it has ended when this ends.

    `child` is filled as things happen; `on_end` is called when the server says no more. Raises OSError if it cannot be
    started.
    """
    child.process = process = await asyncio.create_subprocess_exec(
        *_guarded(command),
        env={**get_default_environment(), **env},
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_say = anyio.create_memory_object_stream[SessionMessage](0)
    said_all = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_listen, process, heard, max_bytes, child, on_end)
        group.start_soon(_speak, process, to_say, heard)
        group.start_soon(_keep_tail, process, child, said_all)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                await _end(process)
                with anyio.move_on_after(_LAST_WORDS):
                    await said_all.wait()
            group.cancel_scope.cancel()


def _guarded(command: tuple[str, ...]) -> tuple[str, ...]:
    if not sys.platform.startswith("linux"):
        return command
    return (sys.executable, "-I", "-S", str(Path(guard.__file__)), str(os.getpid()), *command)


async def _listen(
    process: asyncio.subprocess.Process, heard: Any, max_bytes: int, child: Child, on_end: Callable[[], None]
) -> None:
    """Pass on what the server says, until it says no more or a line without end."""
    assert process.stdout is not None
    lines = Lines(max_bytes)
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        async with heard:
            try:
                while piece := await process.stdout.read(_PIECE):
                    for message in lines.feed(piece):
                        await heard.send(SessionMessage(message))
            except EndlessLineError as error:
                child.fault = str(error)
    on_end()


async def _speak(process: asyncio.subprocess.Process, to_say: Any, heard: Any) -> None:
    assert process.stdin is not None
    try:
        async with to_say:
            async for said in to_say:
                text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except (ConnectionError, RuntimeError):
        await heard.aclose()  # it listens no more, so it will not answer either


async def _keep_tail(process: asyncio.subprocess.Process, child: Child, said_all: anyio.Event) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(_PIECE):
        child.tail += piece
        del child.tail[:-_TAIL]
    said_all.set()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End its input, then ask it to end, then end it."""
    if process.stdin is not None:
        process.stdin.close()
    for patience, what in zip(_PATIENCE, (signal.SIGTERM, signal.SIGKILL), strict=True):
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience)
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, what)
    await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
