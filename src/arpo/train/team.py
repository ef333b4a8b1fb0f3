"""The processes that train together, as the loop sees them: who am I, what have the others got, do all agree.

Each rolls out its share of a step's groups, then all have all trees, and from there on every process does the same with
the same. What a decision hangs on (a signal, a clock) is agreed upon first, so that nobody leaves alone. Objects travel
over a gloo group of their own, since NCCL knows tensors only.

One that fails or is killed ends the run for all: nobody can do its part. The others stop with an error that says so,
within seconds (`arpo.train.watch`), also where they wait in a collective or a kernel; the run goes on from its last
checkpoint when it is started again.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from arpo.errors import ArpoError
from arpo.train.watch import Watch, meet

_Value = TypeVar("_Value")
_WAIT = timedelta(hours=6)
"""For the slowest share of a rollout. That a process is gone is found out otherwise."""
_GRACE_S = 15.0
"""For an orderly end once another process is lost; launchers allow 30 s."""
_PATIENCE_S = 10.0
"""For the word of a loss, once a collective has failed."""


class PeerLostError(ArpoError):
    """Another process of the run has failed or is gone."""

    exit_code = 8


class Team:
    """One process, which is all there is."""

    rank, size = 0, 1
    accelerator: Any = None

    @property
    def first(self) -> bool:
        """Whether this process writes and talks."""
        return self.rank == 0

    def share(self, own: _Value) -> list[_Value]:
        """What each process has put in, in their order. Collective, as all below."""
        return [own]

    def told(self, own: _Value) -> _Value:
        """What the first process has put in."""
        return self.share(own)[0]

    def wait(self) -> None:
        """Until all are here."""
        self.share(None)

    def deal(self, items: Sequence[_Value]) -> Sequence[_Value]:
        """This process's share of them."""
        return items[self.rank :: self.size]

    async def gather(self, own: Sequence[_Value]) -> list[_Value]:
        """The items in the order in which they were before they were dealt. The event loop goes on meanwhile."""
        return list(own)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around all that the processes do together. An error in here ends the others, too."""
        yield

    @contextlib.contextmanager
    def cancelling(self) -> Iterator[None]:
        """Within a task: it is cancelled when another process is lost."""
        yield


class Processes(Team):
    """Several processes that a launcher has started."""

    def __init__(self, accelerator: Any) -> None:
        from torch import distributed

        self.accelerator = accelerator
        self.rank, self.size = int(accelerator.process_index), int(accelerator.num_processes)
        self._group = distributed.new_group(backend="gloo", timeout=_WAIT)
        self._cancel: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._watch: Watch = meet(self.rank, self.size, self.told, self._lost)

    def share(self, own: _Value) -> list[_Value]:
        from torch import distributed

        shares: list[Any] = [None] * self.size
        distributed.all_gather_object(shares, own, group=self._group)
        return shares

    async def gather(self, own: Sequence[_Value]) -> list[_Value]:
        shares = await asyncio.to_thread(self.share, list(own))
        count = sum(map(len, shares))
        return [shares[place % self.size][place // self.size] for place in range(count)]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
            self.wait()
            self._watch.finish()
            self.wait()
        except BaseException as error:
            self._leave(error)
            raise
        self._watch.close()

    def _leave(self, error: BaseException) -> None:
        """Raise PeerLostError if the error comes of another process's end; else tell the others of it."""
        follows = isinstance(error, RuntimeError | OSError | asyncio.CancelledError)
        reason = self._watch.known(_PATIENCE_S if follows else 0.0)
        if reason is not None and follows:
            raise self._loss(reason) from error
        self._watch.tell(f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def cancelling(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._cancel = asyncio.get_running_loop(), task
        try:
            if self._watch.reason is not None:
                raise self._loss(self._watch.reason)
            yield
        finally:
            self._cancel = None

    def _lost(self, reason: str) -> None:
        """Called from the watching thread. It is said at once: a launcher may end this process in the next moment."""
        print(f"arpo: error: {self._remedy(reason)}", file=sys.stderr, flush=True)
        if self._cancel is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._cancel[0].call_soon_threadsafe(self._stop)
        # The main thread may wait for something that will not come.
        end = threading.Timer(_GRACE_S, os._exit, [PeerLostError.exit_code])
        end.daemon = True
        end.start()

    def _stop(self) -> None:
        if self._cancel is not None:
            self._cancel[1].cancel()

    def _remedy(self, reason: str) -> str:
        return (
            f"{reason}. Process {self.rank} of {self.size} stops with it; checkpoints are whole, and --resume goes on "
            "from the last"
        )

    def _loss(self, reason: str) -> PeerLostError:
        return PeerLostError(f"process {self.rank} has stopped, as {reason}")


ALONE = Team()


def join(accelerator: Any) -> Team:
    """The team of an `accelerate.Accelerator`; None or one process: nobody else. Collective."""
    return ALONE if accelerator is None or accelerator.num_processes == 1 else Processes(accelerator)


def launched() -> tuple[int, int]:
    """Rank and number of the processes that a launcher has started; (0, 1) without one.

    WORLD_SIZE alone says nothing, since cluster managers set it, too.
    """
    if "LOCAL_RANK" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
