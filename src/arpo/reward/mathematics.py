"""Do two formulas mean the same? Asked of math-verify, in processes of its own.

math-verify builds on SymPy, which some inputs keep busy for ever, and it can be interrupted only in the main thread of
a process: so it runs in a few long-lived workers (`mathematics_pool`), and whoever asks waits for no more than a
deadline. No answer in time counts as "no" and is counted in `counters`.

One pool serves the whole process. It starts with the first question and ends with the process; a forked child gets one
of its own. `configure` changes how it works.
"""

import atexit
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import Field

from arpo.reward.hybrid import LONGEST, Question
from arpo.reward.mathematics_pool import Counters, Pool
from arpo.settings import Frozen


class MathematicsSettings(Frozen):
    """How formulas are compared.

    `seconds`: deadline of one comparison, from when a worker takes it; waiting for a free worker does not count. On a
    machine so busy that the worker hardly runs, it may take four times as long.
    `workers`: processes at the most; None: one per core this process may use, up to 4. `memory_mb`: address space of
    each. `max_chars`: an answer or gold answer that is longer is not compared but different.
    """

    seconds: float = Field(default=5.0, gt=0, le=600)
    workers: int | None = Field(default=None, ge=1, le=64)
    memory_mb: int = Field(default=1024, ge=256)
    max_chars: int = Field(default=1000, ge=1, le=LONGEST)

    @property
    def processes(self) -> int:
        return self.workers or min(4, _cores())


@dataclass
class _Shared:
    """What this process compares with."""

    settings: MathematicsSettings
    pool: Pool
    lock: threading.Lock


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shared(settings: MathematicsSettings, counters: Counters | None = None) -> _Shared:
    return _Shared(settings, Pool(settings.processes, settings.memory_mb, counters or Counters()), threading.Lock())


_this = _shared(MathematicsSettings())


def configure(settings: MathematicsSettings) -> None:
    """Compare like this from now on, in this process. Counters go on; comparisons under way end as they began."""
    global _this
    with _this.lock:
        if settings != _this.settings:
            old, _this = _this, _shared(settings, _this.pool.counters)
            old.pool.close()


def equal(question: Question) -> bool:
    """Whether both mean the same, as far as math-verify can tell within the deadline.

    VerifierError if no process can be started, or if a fresh one fails at the simplest comparison too.
    """
    shared = _this
    if max(len(question.gold), len(question.prediction)) > shared.settings.max_chars:
        shared.pool.counters.add(too_long=1)
        return False
    return shared.pool.equal(question, shared.settings.seconds)


def equal_many(questions: Sequence[Question]) -> list[bool]:
    """`equal` of each, in all workers at once."""
    if len(questions) < 2:
        return [equal(question) for question in questions]
    with ThreadPoolExecutor(_this.settings.processes, "mathematics") as threads:
        return list(threads.map(equal, questions))


def counters() -> Counters:
    """What has been counted in this process so far: a copy."""
    return _this.pool.counters.copy()


def close() -> None:
    """End the workers. The next question starts new ones."""
    _this.pool.close()


def _after_fork() -> None:
    """In a forked child: the parent's workers are the parent's."""
    global _this
    _this.pool.forget()
    _this = _shared(_this.settings)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
