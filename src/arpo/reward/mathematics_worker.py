"""The process that compares formulas. Run as a script; it imports nothing of ours.

Standard input is a socket. A message is its length (four bytes, big-endian) and JSON. After a first message that says
"ready", each question (`gold`, `prediction`, `stock`) gets one answer: `equal`; `error`, "memory" or "depth", if it
could not be found; and `rss`, the memory in use, in MiB.

It ends when the other side is gone. While it waits it sees that for itself; while SymPy computes, perhaps in C code
that no Python thread can interrupt, the kernel kills it at the end of the connection (SIGIO, which nobody handles).

What is compared is text that a model wrote. math-verify's parser of LaTeX does not evaluate it, its parser of plain
expressions (which does) is not used, and should anything else ever try: files, processes and connections are refused.
"""

import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any

_REFUSED = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.", "urllib.", "ftplib.", "http.")
_ALLOWED = ("os.listdir", "os.scandir", "os.getxattr", "os.walk", "os.fwalk", "socket.__new__")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_PATIENCE_MS = 5000
"""How often a worker that waits looks whether its parent is still the same."""


@lru_cache(maxsize=512)
def parsed(latex: str, stock: bool) -> list[Any]:
    """What math-verify reads in a formula, all letters as variables unless `stock`."""
    from math_verify import LatexExtractionConfig, parse

    config = LatexExtractionConfig()
    if not stock:
        config = replace(config, normalization_config=replace(config.normalization_config, units=False))
    return parse(f"\\boxed{{{latex}}}", [config], fallback_mode="no_fallback", parsing_timeout=None)


def equal(gold: str, prediction: str, stock: bool = False) -> bool:
    """Whether both mean the same. The gold answer comes first: the comparison is not symmetric."""
    from math_verify import verify

    truth = parsed(gold, stock)
    return bool(truth) and bool(verify(truth, parsed(prediction, stock), timeout_seconds=None))


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question; what a parser or SymPy raises over it means that they are not equal."""
    try:
        said: dict[str, Any] = {"equal": equal(question["gold"], question["prediction"], question["stock"])}
    except MemoryError:
        said = {"equal": False, "error": "memory"}
    except RecursionError:
        said = {"equal": False, "error": "depth"}
    except Exception:  # noqa: BLE001 - whatever is raised over a hostile formula is about the formula
        said = {"equal": False}
    return said | {"rss": _memory_mb()}


def _memory_mb() -> int:
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: nothing that leaves this process."""
    if event == "open" and isinstance(arguments[2], int) and not arguments[2] & _WRITES:
        return
    if event == "open" or (event.startswith(_REFUSED) and event not in _ALLOWED):
        raise RuntimeError(f"{event} is refused")


def _confine(memory_mb: int) -> None:
    """Limits that the process cannot lift again."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: 64}
    if sys.platform == "linux":  # elsewhere the address space is not what a process uses
        limits[resource.RLIMIT_AS] = memory_mb << 20
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))
    sys.addaudithook(refuse)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(data)) + data)


def _wait(connection: socket.socket, parent: int) -> None:
    """Until there is a question, as long as there is somebody to ask one."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(_PATIENCE_MS):
        if os.getppid() != parent:
            os._exit(0)


def _watched(connection: socket.socket, on: bool) -> None:
    """Whether the end of the connection is the end of this process."""
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)
    if on:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if poll.poll(0):  # it ended just before
            os._exit(0)


def serve(connection: socket.socket, parent: int) -> None:
    """Answer until nobody asks any more."""
    while True:
        _wait(connection, parent)
        (size,) = struct.unpack(">I", _receive(connection, 4))
        question = json.loads(_receive(connection, size))
        _watched(connection, True)
        said = answer(question)
        _watched(connection, False)
        _send(connection, said)


def _prepare() -> None:
    """Import everything and use it once: what is broken shows here, and the first questions do not pay for it.

    They would pay dearly on a busy machine: one that comes too late costs a worker, whose successor is slow again.
    """
    import logging

    logging.disable(logging.CRITICAL)
    for latex in (r"\frac{1}{2}+\sqrt{x}", r"\{1,2\}", "(1,2)", "x<3"):
        equal(latex, latex)
    if equal("1", "2") or not equal("2", r"\frac{4}{2}"):
        raise RuntimeError("math-verify finds 1 = 2, or 2 different from 4/2")


def main(parent: int, memory_mb: int) -> None:
    """Tell that all is well, or what is not, and serve."""
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        _prepare()
    except Exception as error:  # noqa: BLE001 - told to whoever waits for "ready"
        _send(connection, {"failed": f"{type(error).__name__}: {error}"})
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    _confine(memory_mb)
    _send(connection, {"ready": True})
    serve(connection, parent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
