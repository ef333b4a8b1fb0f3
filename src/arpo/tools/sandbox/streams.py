"""Output of a run as far as it is kept: its beginning and its end, within a fixed number of bytes."""

from collections import deque


class HeadTail:
    """Keeps the first half and the last half of a limit; counts all. Memory stays within the limit and one piece."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._head_size = limit - limit // 2
        self._tail: deque[bytes] = deque()
        self._tail_size = limit // 2
        self._tail_held = 0

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self.total += len(data)
        space = self._head_size - len(self._head)
        if space > 0:
            self._head += data[:space]
            data = data[space:]
        if data and self._tail_size:
            self._tail.append(data[-self._tail_size :])
            self._tail_held += len(self._tail[-1])
            while self._tail_held - len(self._tail[0]) >= self._tail_size:
                self._tail_held -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether some of it was not kept."""
        return self.total > self._head_size + self._tail_size

    def text(self) -> str:
        """What was kept, invalid bytes as U+FFFD; a line in the middle says how much is missing."""
        tail = b"".join(self._tail)[-self._tail_size :] if self._tail_size else b""
        if not self.truncated:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        missing = self.total - len(self._head) - len(tail)
        head, end = self._head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
        return f"{head}\n... {missing} bytes left out ...\n{end}"
