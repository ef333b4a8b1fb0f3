"""One worker process that compares formulas, the socket to it, and the deadline of a question.

A worker ends when its socket does.

The deadline is one of work: what a worker could not compute because the machine was busy is given to it on top, up to a
limit, so that scores do not depend on the load.
"""

import json
import os
import struct
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.errors import VerifierError
from arpo.reward.hybrid import Question
from arpo.workers import start

_START = 60.0
"""Seconds that a worker may take to import SymPy, on a machine under load."""
_STARVED = 4.0
"""Deadlines that a question may take on the clock as long as its worker has not had one of processor time."""


class Late(Exception):  # noqa: N818
    """No answer by the deadline."""


class Died(Exception):  # noqa: N818
    """The worker is gone, or says what none of ours would."""


class _Deadline:
    """`seconds` on the clock for a process that computes, more for one that others keep from computing."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._started, self._used, self._until = time.monotonic(), _processor_time(pid), seconds

    def left(self) -> float:
        """Seconds that may be waited now. Raises Late if there are none."""
        passed = time.monotonic() - self._started
        if passed >= self._until:
            missing = self._seconds - (_processor_time(self._pid) - self._used)
            self._until = min(passed + missing, _STARVED * self._seconds)
        if self._until - passed < 0.01:
            raise Late
        return self._until - passed


def _processor_time(pid: int) -> float:
    """Seconds that a process has computed; where nobody says, those on the clock."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Worker:
    """One process and the socket to it."""

    def __init__(self, memory_mb: int) -> None:
        self.jobs, self.rss = 0, 0
        self.process, self.socket = start(Path(__file__).with_name("mathematics_worker.py"), memory_mb)

    def ready(self) -> None:
        """Wait until it can be asked. VerifierError if it never can."""
        try:
            said = self._hear(_Deadline(0, _START))
        except (Late, Died) as error:
            raise VerifierError(f"the process that compares formulas did not start within {_START:g} s") from error
        if "failed" in said:
            raise VerifierError(f"the process that compares formulas cannot start: {said['failed']}")

    def ask(self, question: Question, seconds: float) -> dict[str, Any]:
        """Its answer; the worker is of no more use if there is none (Late, Died)."""
        until = _Deadline(self.process.pid, seconds)
        data = json.dumps(asdict(question)).encode()
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(struct.pack(">I", len(data)) + data)
        except TimeoutError as error:
            raise Late from error
        except OSError as error:
            raise Died from error
        answer = self._hear(until)
        self.jobs, self.rss = self.jobs + 1, int(answer.get("rss", 0))
        return answer

    def _hear(self, until: "_Deadline") -> dict[str, Any]:
        (size,) = struct.unpack(">I", self._receive(4, until))
        if size > 10_000:
            raise Died
        try:
            said = json.loads(self._receive(size, until))
        except ValueError as error:
            raise Died from error
        if not isinstance(said, dict):
            raise Died
        return said

    def _receive(self, size: int, until: "_Deadline") -> bytes:
        data = b""
        while len(data) < size:
            self.socket.settimeout(until.left())
            try:
                more = self.socket.recv(size - len(data))
            except TimeoutError:
                continue
            except OSError as error:
                raise Died from error
            if not more:
                raise Died
            data += more
        return data

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kill it and wait until it is gone, which takes no time: it cannot refuse."""
        self.process.kill()
        self.process.wait()
        self.socket.close()
