"""Who of several processes is still there.

A process that is killed cannot say so, and the others would wait for it in a collective: for as long as its timeout
lasts, which must be long, since a rollout is. So every process holds a connection to the first. When one ends, however
it ends, the system closes its connection, and the others know within milliseconds; one that is stopped, or whose
machine is gone, stops sending its beat and is given up after two minutes. One that fails says why.
"""

import contextlib
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable

BEAT_S = 5.0
"""Between two signs of life."""
SILENT_BEATS = 24
"""Missed in a row by a process that is given up; counted in beats of our own, so that a suspended machine wakes up
whole."""
_MEET_S = 300.0
_LINE = 2000
_BEAT, _FAILED = b".", b"!"


class Watch:
    """Started once by every process. `lost` is told, from a thread and once, what has become of another one."""

    def __init__(self, rank: int, peers: dict[int, socket.socket], lost: Callable[[str], None]) -> None:
        self.rank, self._peers, self._lost = rank, peers, lost
        self.reason: str | None = None
        self._over = False
        self._known = threading.Event()
        self._sending = threading.Lock()
        self._unread = dict.fromkeys(peers, b"")
        self._missed = dict.fromkeys(peers, 0)
        self._selector = selectors.DefaultSelector()
        for peer, connection in peers.items():
            self._selector.register(connection, selectors.EVENT_READ, peer)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def known(self, timeout: float) -> str | None:
        """What has become of another process; waits a while for the word of it."""
        self._known.wait(timeout)
        return self.reason

    def tell(self, what: str) -> None:
        """This process fails; the others hear why."""
        self._send(_FAILED + f"process {self.rank} failed: {' '.join(what.split())}"[:_LINE].encode(errors="replace"))

    def finish(self) -> None:
        """From here on it is in order that processes end. All are to call it before any does."""
        self._over = True

    def close(self) -> None:
        self._over = True
        self._thread.join(2 * BEAT_S)
        for connection in self._peers.values():
            connection.close()

    def _run(self) -> None:
        beat = time.monotonic()
        while not self._over and self.reason is None:
            for key, _ in self._selector.select(0.5):
                self._hear(key.data, self._peers[key.data])
            if time.monotonic() - beat >= BEAT_S:
                beat = time.monotonic()
                self._send(_BEAT)
                self._count()

    def _hear(self, peer: int, connection: socket.socket) -> None:
        try:
            received = connection.recv(1 << 16)
        except OSError:
            received = b""
        self._missed[peer] = 0
        if not received:
            self._give_up(f"process {peer} ended without a word: killed, out of memory, or crashed")
            return
        *lines, self._unread[peer] = (self._unread[peer] + received).split(b"\n")
        for line in lines:
            if line.startswith(_FAILED):
                self._give_up(line.removeprefix(_FAILED).decode(errors="replace"))

    def _count(self) -> None:
        for peer in self._missed:
            self._missed[peer] += 1
            if self._missed[peer] > SILENT_BEATS:
                self._give_up(
                    f"process {peer} has been silent for {BEAT_S * SILENT_BEATS:g} s: stopped, or its machine is gone"
                )

    def _give_up(self, reason: str) -> None:
        if self._over or self.reason is not None:
            return
        self.reason = reason
        self._known.set()
        if self.rank == 0:
            self._send(_FAILED + reason.encode(errors="replace"))
        self._lost(reason)

    def _send(self, line: bytes) -> None:
        with self._sending:
            for connection in self._peers.values():
                with contextlib.suppress(OSError):  # who is gone is found out by reading
                    connection.sendall(line + b"\n")


def meet(
    rank: int, size: int, told: Callable[[tuple[int, bytes]], tuple[int, bytes]], lost: Callable[[str], None]
) -> Watch:
    """Connect every process with the first. `told`: collective, gives all what the first process has put in."""
    if rank:
        port, word = told((0, b""))
        connection = socket.create_connection((_host(size), port), timeout=_MEET_S)
        connection.sendall(word + rank.to_bytes(4, "big"))
        connection.settimeout(None)
        return Watch(rank, {0: connection}, lost)
    word = secrets.token_bytes(16)
    with socket.create_server(("127.0.0.1" if _alone(size) else "", 0), backlog=size) as listener:
        told((listener.getsockname()[1], word))
        return Watch(0, _accepted(listener, size, word), lost)


def _accepted(listener: socket.socket, size: int, word: bytes) -> dict[int, socket.socket]:
    """Connections of those who know the word, by rank."""
    listener.settimeout(_MEET_S)
    found: dict[int, socket.socket] = {}
    while len(found) < size - 1:
        connection, _ = listener.accept()
        connection.settimeout(_MEET_S)
        said = connection.recv(len(word) + 4, socket.MSG_WAITALL)
        if not secrets.compare_digest(said[: len(word)], word):
            connection.close()
            continue
        connection.settimeout(None)
        found[int.from_bytes(said[len(word) :], "big")] = connection
    return found


def _alone(size: int) -> bool:
    """Whether all processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == size


def _host(size: int) -> str:
    return "127.0.0.1" if _alone(size) else os.environ.get("MASTER_ADDR", "127.0.0.1")
