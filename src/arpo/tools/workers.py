"""Threads for tools that block: reused while they answer, replaced when they do not.

Nothing can stop a Python thread from outside. A thread that is past its call's time limit is therefore abandoned: it
counts no more, the next call gets another one, and it ends by itself should its call ever return. The threads are
daemons, so one that never returns does not keep the process from ending, as `concurrent.futures` would.

A thread stands in the idle list before its result is delivered, so that as many threads exist as calls ran at once,
and never one more.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = Callable[[], Any]
DEFAULT_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Calls at once of a tool in threads whose concurrency is not limited."""
Outcome = tuple[Any, BaseException | None]
"""What a job returned, and what it raised."""


class Worker:
    """One thread that takes one job after another. Made and used by `Workers`."""

    def __init__(self, name: str, owner: "Workers") -> None:
        self.busy = False
        self._owner = owner
        self._jobs: SimpleQueue[tuple[Job, asyncio.Future[Outcome]] | None] = SimpleQueue()
        self._abandoned = False
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def give(self, job: Job, answer: "asyncio.Future[Outcome]") -> None:
        self.busy = True
        self._jobs.put((job, answer))

    def dismiss(self) -> None:
        """To be called on an idle worker: its thread ends."""
        self._jobs.put(None)

    def abandon(self) -> bool:
        """Use this thread no more. False if its job is done, so that there is nothing to give up."""
        with self._owner.lock:
            self._abandoned = self.busy
            return self.busy

    def _serve(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, answer = given
            outcome = _outcome(job)
            ends = self._release()
            with contextlib.suppress(RuntimeError):  # the loop that asked is closed: nobody waits any more
                answer.get_loop().call_soon_threadsafe(_deliver, answer, outcome)
            del given, job, answer, outcome
            if ends:
                break
        self._owner.forget(self)

    def _release(self) -> bool:
        with self._owner.lock:
            self.busy = False
            if not self._abandoned:
                self._owner.idle.append(self)
            return self._abandoned


def _outcome(job: Job) -> Outcome:
    try:
        return job(), None
    except BaseException as error:  # noqa: BLE001 - a tool's own exit or interrupt must not end the thread unheard
        return None, error


def _deliver(answer: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)


class Workers:
    """The threads of one tool. How many there are is decided by whoever limits the calls at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.idle: list[Worker] = []
        self._all: set[Worker] = set()

    @property
    def count(self) -> int:
        """Threads that exist, those that were abandoned and still run included."""
        with self.lock:
            return len(self._all)

    def start(self, job: Job) -> "tuple[Worker, asyncio.Future[Outcome]]":
        """Run `job` in a thread; the future belongs to the running loop."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        worker = self._idle_or_new()
        worker.give(job, answer)
        return worker, answer

    def _idle_or_new(self) -> Worker:
        with self.lock:
            if self.idle:
                return self.idle.pop()
        worker = Worker(f"tool {self.name}", self)
        with self.lock:
            self._all.add(worker)
        return worker

    def forget(self, worker: Worker) -> None:
        """The worker's thread is about to end."""
        with self.lock:
            self._all.discard(worker)

    async def close(self, patience: float) -> None:
        """End the idle threads, and wait `patience` seconds for the busy ones to end too."""
        until = time.monotonic() + patience
        with self.lock:
            threads = [worker.thread for worker in self._all]
        while any(thread.is_alive() for thread in threads):
            with self.lock:
                idle, self.idle = self.idle, []
            for worker in idle:
                worker.dismiss()
            if time.monotonic() > until and not idle:
                return
            await asyncio.sleep(0.005)
