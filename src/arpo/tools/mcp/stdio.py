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
import time
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
_REAPED, _TICK = 0.2, 0.01
_LAST_WORDS = 0.2
"""Seconds to read what the server wrote before it ended."""
_PATIENCE = (0.4, 0.5)
"""Seconds for the server to end after its input has ended, and after it was asked to."""


@dataclass(eq=False)
class Child:
    """A server that was started: how it ended, as far as it is known."""

    process: "Process | None" = None
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
    child.process = process = await _started(_guarded(command), {**get_default_environment(), **env}, cwd)
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
                process.transport.close()
            group.cancel_scope.cancel()


@dataclass(frozen=True)
class Process:
    """A started program and its streams."""

    transport: asyncio.SubprocessTransport
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @property
    def pid(self) -> int:
        return self.transport.get_pid()

    @property
    def returncode(self) -> int | None:
        return self.transport.get_returncode()


async def _started(command: tuple[str, ...], env: Mapping[str, str], cwd: str | None) -> Process:
    loop, pipe = asyncio.get_running_loop(), asyncio.subprocess.PIPE
    transport, protocol = await loop.subprocess_exec(
        lambda: asyncio.subprocess.SubprocessStreamProtocol(limit=_PIECE, loop=loop),
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True,
    )  # fmt: skip
    stdin, stdout, stderr = protocol.stdin, protocol.stdout, protocol.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    return Process(transport, stdin, stdout, stderr)


def _guarded(command: tuple[str, ...]) -> tuple[str, ...]:
    if not sys.platform.startswith("linux"):
        return command
    return (sys.executable, "-I", "-S", str(Path(guard.__file__)), str(os.getpid()), *command)


async def _listen(process: Process, heard: Any, max_bytes: int, child: Child, on_end: Callable[[], None]) -> None:
    """Pass on what the server says, until it says no more or a line without end."""
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


async def _speak(process: Process, to_say: Any, heard: Any) -> None:
    try:
        async with to_say:
            async for said in to_say:
                text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except (ConnectionError, RuntimeError):
        await heard.aclose()  # it listens no more, so it will not answer either


async def _keep_tail(process: Process, child: Child, said_all: anyio.Event) -> None:
    while piece := await process.stderr.read(_PIECE):
        child.tail += piece
        del child.tail[:-_TAIL]
    said_all.set()


async def _end(process: Process) -> None:
    """End its input, then ask it to end, then end it."""
    process.stdin.close()
    for patience, what in zip(_PATIENCE, (signal.SIGTERM, signal.SIGKILL), strict=True):
        if await _ended(process, patience):
            break
        _signal(process, what)
    await _ended(process, _REAPED)


async def _ended(process: Process, patience: float) -> bool:
    """Whether it ends within `patience` seconds. Asked for again and again: waiting for it would also wait until nobody
    else holds its streams.
    """
    until = time.monotonic() + patience
    while process.returncode is None and time.monotonic() < until:
        await asyncio.sleep(_TICK)
    return process.returncode is not None


def _signal(process: Process, what: signal.Signals) -> None:
    """To all of its group; the group stays if its leader is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, what)
