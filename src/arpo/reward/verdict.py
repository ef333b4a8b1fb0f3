"""What a comparison of one answer says, by rule or by a judge."""

from dataclasses import dataclass
from typing import Literal, Protocol

from arpo.task import Task


@dataclass(frozen=True, slots=True)
class Verdict:
    """`score`: 0 to 1; None: nobody could say (an outage, an unparsable reply), which is never counted as wrong.

    `grade`: the judge's own word ("correct", "C", ...), "" from a rule. `confidence`: percent, where the protocol asks
    for it. `by`: who decided.
    """

    score: float | None
    grade: str = ""
    confidence: float | None = None
    by: Literal["rule", "judge", "cache"] = "rule"


class Metric(Protocol):
    """A way to compare an answer with a task's gold answers."""

    name: str

    async def __call__(self, task: Task, answer: str | None) -> Verdict:
        """Never raises for what an answer says. None and blank answers score 0 and are never judged."""
        ...
