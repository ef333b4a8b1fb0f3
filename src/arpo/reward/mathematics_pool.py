"""Who asks which worker about a formula: one question each at a time, a deadline, and no mercy.

A worker that is late is killed, and so is what it was computing; the next question gets a new one. One that dies over a
question is replaced, and the question is asked once more: if the second worker dies too but a third is well, the
question is to blame and its answer is no. Only when no worker is well does that become the caller's trouble.
"""

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from arpo.errors import VerifierError
from arpo.reward.hybrid import Question
from arpo.reward.mathematics_process import Died, Late, Worker

_JOBS = 20_000
"""Questions after which a worker is retired."""
_GROWN = 0.6
"""Share of its memory limit above which a worker is retired."""
_REMEMBERED = 16_384


@dataclass
class Counters:
    """Counted since the process started. `calls`: questions that a worker was given; `timeouts`: not answered in time;
    `crashes`: workers that died over a question; `memory`: questions that needed too much of it; `too_long`: not asked;
    `remembered`: answered from memory.
    """

    calls: int = 0
    timeouts: int = 0
    crashes: int = 0
    memory: int = 0
    too_long: int = 0
    remembered: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def copy(self) -> "Counters":
        with self._lock:
            return replace(self, _lock=threading.Lock())


class Pool:
    """Up to `size` workers, started when they are needed. For any number of threads."""

    def __init__(self, size: int, memory_mb: int, counters: Counters) -> None:
        self._size, self._memory_mb, self.counters = size, memory_mb, counters
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._all: list[Worker] = []
        self._places = size
        self._known: OrderedDict[Question, bool] = OrderedDict()

    def equal(self, question: Question, seconds: float) -> bool:
        """Whether a worker says so within `seconds` of being asked. Answers, not failures, are remembered."""
        with self._changed:
            if (known := self._known.get(question)) is not None:
                self._known.move_to_end(question)
                self.counters.add(remembered=1)
                return known
        try:
            answer = self._asked(question, seconds)
        except Late:
            self.counters.add(timeouts=1)
            return False
        with self._changed:
            self._known[question] = answer
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return answer

    def _asked(self, question: Question, seconds: float) -> bool:
        """One answer from a worker; another worker's if the first died over it, and no if that one did too."""
        for _ in range(2):
            try:
                return self._once(question, seconds)
            except Died:
                self.counters.add(crashes=1)
        try:
            well = self._once(Question("1", "1"), max(seconds, 5.0))
        except (Died, Late):
            well = False
        if not well:
            raise VerifierError("the processes that compare formulas die or hang over 1 = 1: is there enough memory?")
        return False

    def _once(self, question: Question, seconds: float) -> bool:
        worker = self._take()
        self.counters.add(calls=1)
        kept = False
        try:
            answer = worker.ask(question, seconds)
            kept = worker.jobs < _JOBS and worker.rss < _GROWN * self._memory_mb and "error" not in answer
        finally:
            self._put_back(worker, kept)
        if answer.get("error") == "memory":
            self.counters.add(memory=1)
        return answer.get("equal") is True

    def _take(self) -> Worker:
        """A worker that waits, or a new one; waits itself while all are busy."""
        with self._changed:
            while self._places == 0:
                self._changed.wait()
            self._places -= 1
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                self._discard(worker)
        try:
            return self._started()
        except BaseException:
            self._free_place()
            raise

    def _started(self) -> Worker:
        try:
            worker = Worker(self._memory_mb)
        except OSError as error:
            raise VerifierError(f"no process to compare formulas can be started: {error}") from error
        with self._changed:
            self._all.append(worker)
        try:
            worker.ready()
        except BaseException:
            with self._changed:
                self._discard(worker)
            raise
        return worker

    def _put_back(self, worker: Worker, kept: bool) -> None:
        with self._changed:
            if kept and worker in self._all:
                self._idle.append(worker)
            else:
                self._discard(worker)
        self._free_place()

    def _free_place(self) -> None:
        with self._changed:
            self._places += 1
            self._changed.notify()

    def _discard(self, worker: Worker) -> None:
        if worker in self._all:
            self._all.remove(worker)
        worker.end()

    def close(self) -> None:
        """End the workers that wait, now, and those that work, when they have answered. May be used again."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._all = []
        for worker in idle:
            worker.end()

    def forget(self) -> None:
        """In a forked child: let go of the parent's workers without a word to them."""
        for worker in self._all:
            with contextlib.suppress(OSError):
                worker.socket.close()
            worker.process.returncode = 0
