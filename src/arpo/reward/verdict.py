"""What a comparison of one answer says, by rule or by a judge."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from arpo.task import Task


@dataclass(frozen=True, slots=True)
class Verdict:
    """`score`: 0 to 1; None: nobody could say (an outage, an unparsable reply), which is never counted as wrong.

    `grade`: the judge's own word ("correct", "not_attempted", ...), "" from a rule. `confidence`: percent that the
    answer states, where the protocol asks for it. `by`: who decided; "nobody" where a judge was out of reach. `judge`:
    model, protocol and hash of the prompt, "" from a rule. `reason`: why there is no score.
    """

    score: float | None
    grade: str = ""
    confidence: float | None = None
    by: Literal["rule", "judge", "cache", "nobody"] = "rule"
    judge: str = ""
    reason: str = ""


class Metric(Protocol):
    """A way to compare an answer with a task's gold answers. Closed at the end of its use."""

    name: str

    async def __call__(self, task: Task, answer: str | None) -> Verdict:
        """Never raises for what an answer says. None and blank answers score 0 and are never judged."""
        ...

    async def check(self) -> None:
        """At the start of a run: whether whoever decides can be asked. EngineError or ConfigError if not."""
        ...

    def card(self) -> dict[str, Any]:
        """For results and the card of a run: what decided, down to the hash of the prompt. No secrets."""
        ...

    def drain(self) -> Mapping[str, float]:
        """Counters since the last call, as metrics `reward/...`; they start again from 0."""
        ...

    async def close(self) -> None:
        """Release connections and files."""
        ...
