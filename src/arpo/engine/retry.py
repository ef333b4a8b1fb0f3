"""When to leave a model server alone: the circuit of `arpo.retry`, and what each kind of error means to it.

It counts requests that failed after all their retries, not attempts: a server that restarts costs nobody more than a
pause, however many requests were in flight. After `threshold` such failures in a row everybody is refused at once;
after `cooldown` seconds one request may try whether the server is back. A refusal says that the server is well, but ten
times as many refusals and nothing else mean that it will have none of this run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from arpo.errors import EngineDownError, EngineError
from arpo.retry import Circuit, Clock

_MANY = 10
"""So many times the threshold of refusals in a row open the breaker, too."""


class RefusedError(EngineError):
    """The server is well and will not answer this request."""


class BreakerOpenError(EngineDownError):
    """Nothing was sent, because too much failed before."""


class Breaker:
    """Closed while requests succeed; open after `threshold` failed in a row; half open for one request afterwards."""

    def __init__(self, threshold: int, cooldown: float = 30.0, clock: Clock | None = None) -> None:
        self.circuit = Circuit(threshold, cooldown, clock or Clock())
        self.refusals = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one request, retries included. EngineDownError if nobody may ask or this failure is one too many."""
        if not self.circuit.admits():
            raise BreakerOpenError(self.circuit.reason)
        since = self.circuit.clock.now()
        try:
            yield
        except RefusedError as error:
            self._refused(error)
            raise
        except BreakerOpenError:
            raise
        except EngineDownError as error:
            self.circuit.open(str(error))
            raise
        except EngineError as error:
            self._failed(error, since)
            raise
        except BaseException:
            self.circuit.release(since)
            raise
        else:
            self.refusals = 0
            self.circuit.succeed()

    def check(self) -> None:
        """Between two tries of a request: raise BreakerOpenError if the circuit has opened meanwhile."""
        if self.circuit.wait() > 0:
            raise BreakerOpenError(self.circuit.reason)

    def _refused(self, error: RefusedError) -> None:
        self.circuit.succeed()
        self.refusals += 1
        if self.refusals >= _MANY * self.circuit.threshold:
            self.circuit.open(f"{error} ({self.refusals} requests refused in a row)")
            raise EngineDownError(self.circuit.reason) from error

    def _failed(self, error: EngineError, since: float) -> None:
        count = self.circuit.failures + 1
        if self.circuit.fail(f"{error} ({count} requests failed in a row; nothing more is sent for now)", since):
            raise EngineDownError(self.circuit.reason) from error
