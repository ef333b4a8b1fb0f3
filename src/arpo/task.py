"""Task: what a rollout starts from and what a reward compares with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AnswerKind = Literal["auto", "text", "number", "exact", "math", "choice", "date"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message of the prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with its gold answers.

    `answers`: any of them is right; never empty. `kind` says how to compare (reward room). `provenance`: where the
    task comes from (data set, split, row, question family), for reports and error messages.
    """

    id: str
    messages: tuple[Message, ...]
    answers: tuple[str, ...]
    kind: AnswerKind = "auto"
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """The last user message."""
        return next(m.content for m in reversed(self.messages) if m.role == "user")


def ask(question: str, *answers: str, id: str = "ask", kind: AnswerKind = "auto", **provenance: str) -> Task:
    """A task of one user message."""
    return Task(id, (Message("user", question),), answers, kind, provenance)
