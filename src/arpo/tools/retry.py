"""Which failed call is made again, and when.

Only calls of tools that may be called again without harm, and only failures that the tool itself calls passing
(`TransientError`): an exception that nobody foresaw would most likely meet the next try too. Every try has the tool's
whole time limit, and the wait between two tries counts as waiting, so a call takes at most (1 + retries) * timeout on
the clock, plus its pauses. Between tries the place is given back and taken anew: rate and concurrency hold for tries.

Back-off is full jitter (see `arpo.retry`), drawn from the call's seed and its place, so that a run that is made again
waits as long. What the other side asks for (Retry-After) comes on top; if it asks for more than LONGEST the call is
given up at once.
"""

from arpo.retry import backoff
from arpo.seeds import uniform
from arpo.tools.base import Tool, ToolContext, TransientError

LONGEST = 60.0
"""Seconds that a call waits at the most because it was asked to."""


def is_idempotent(tool: Tool) -> bool:
    """As the tool's `idempotent` says; without it, if it is `stateless`."""
    return bool(getattr(tool, "idempotent", getattr(tool, "stateless", False)))


def pause(error: TransientError, attempt: int, name: str, context: ToolContext) -> float | None:
    """Seconds between try number `attempt` (from 0) of a call and the next; None if there should be no next."""
    asked = error.after or 0.0
    if asked > LONGEST:
        return None
    draw = uniform(context.seed, context.task_id, context.path, context.call_index, name, attempt, "retry")
    return asked + backoff(attempt, draw)
