"""What becomes of calls while a tool is down.

A tool is down when `breaker_after` calls in a row, retries included, failed for reasons of the machinery; what was
answered from a cache, or ran out of time, says nothing either way. It is then left alone for `breaker_rest` seconds,
after which one call tries whether it is back. Meanwhile the run's owner has said what a call is worth:

- "trajectory": the call fails like any other, and its trajectory has no reward;
- "drop_group": so does the whole group, whose survivors would be those that did not need the tool;
- "fail_step": nothing goes on; ToolDownError ends the step;
- "pause": the call waits, off the clock, until another one got through; after `outage_patience` seconds ToolDownError.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from arpo.errors import ToolDownError
from arpo.retry import Circuit, Clock
from arpo.tools.base import ToolResult, ToolStatus
from arpo.tools.limits import Gate, Limit

log = logging.getLogger(__name__)
DROP_GROUP = "drop_group"
"""Key in the data of an `infra_error`: no trajectory of the group is to have a reward."""
_TICK = 0.25
"""Seconds after which a call that waits looks whether the one that tries has come back."""


class Refused(Exception):  # noqa: N818 - not an error of its own: it carries the result
    """The tool is down and the call was not made."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__()
        self.result = result


class Breaker:
    """The circuit of one tool, before its gate. `opened` is called whenever the tool is found to be down."""

    def __init__(self, name: str, limit: Limit, gate: Gate, clock: Clock, opened: Callable[[], None]) -> None:
        self.name, self.limit = name, limit
        self._gate, self._clock, self._opened = gate, clock, opened
        self.circuit = None if limit.breaker_after is None else Circuit(limit.breaker_after, limit.breaker_rest, clock)

    @property
    def down(self) -> bool:
        return self.circuit is not None and not self.circuit.closed

    async def enter(self, patience: "Patience") -> float:
        """Wait for the tool to be up and for one's turn; returns the seconds waited.

        Raises Refused or ToolDownError if the tool is down, as the outage policy says. Whoever is let in tells
        `settle` what came of it.
        """
        waited = 0.0
        while True:
            waited += await self._while_down(patience)
            waited += await self._gate.enter()
            if self.circuit is None or self.circuit.admits():
                return waited
            self._gate.leave()

    def leave(self) -> None:
        self._gate.leave()

    async def _while_down(self, patience: "Patience") -> float:
        waited = 0.0
        while self.circuit is not None and not self.circuit.passable:
            if self.limit.outage != "pause":
                data = {"error": f"not called, because it is down: {self.circuit.reason}", "fault": "refused"}
                raise Refused(self.failed(ToolResult(ToolStatus.INFRA_ERROR, "", data=data)))
            left = patience.left()
            if left <= 0:
                raise self._down(f"; it was waited for {self.limit.outage_patience:g} s")
            rest = min(self.circuit.wait() or _TICK, left)
            await self._clock.sleep(rest)
            waited += rest
        return waited

    def settle(self, result: ToolResult | None, since: float, *, tells: bool = True) -> bool:
        """What came of a call that was let in at `since`; None: it was cancelled. `tells`: whether its failure says
        that the tool may be down. Returns whether the tool is down now.
        """
        if self.circuit is None:
            return False
        if result is not None and result.status is ToolStatus.INFRA_ERROR and tells:
            return self._count(self.circuit, str(result.data.get("error", "")), since)
        if result is None or result.cached or result.status in (ToolStatus.TIMEOUT, ToolStatus.INFRA_ERROR):
            self.circuit.release(since)
        else:
            self._close(self.circuit)
        return False

    def _count(self, circuit: Circuit, reason: str, since: float) -> bool:
        was_closed = circuit.closed
        down = circuit.fail(f"{circuit.failures + 1} calls in a row failed, the last with {reason}", since)
        if down and was_closed:
            self._opened()
            log.warning("tool %s is down: %s; outage = %s", self.name, circuit.reason, self.limit.outage)
        return down

    def _close(self, circuit: Circuit) -> None:
        if not circuit.closed:
            log.warning("tool %s is up again", self.name)
        circuit.succeed()

    def failed(self, result: ToolResult) -> ToolResult:
        """The result of a call that met the outage. Raises ToolDownError where the step is to fail."""
        if self.limit.outage == "fail_step":
            raise self._down("")
        if self.limit.outage != "drop_group":
            return result
        return replace(result, data={**result.data, DROP_GROUP: True})

    def _down(self, more: str) -> ToolDownError:
        reason = self.circuit.reason if self.circuit is not None else ""
        return ToolDownError(
            f"tool {self.name!r} is down ({reason}{more}), and tools.outage = {self.limit.outage!r} lets nothing go on "
            'without it; put it right and resume the run, or set tools.outage = "trajectory"'
        )


class Patience:
    """How long one call still waits for a tool that is down, from the first time that it had to."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds, self._clock = seconds, clock
        self._until: float | None = None

    def left(self) -> float:
        now = self._clock.now()
        if self._until is None:
            self._until = now + self._seconds
        return self._until - now
