"""The tool contract."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from arpo.tools.sessions import Session


class ToolStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    """The tool did what was asked; an empty output is a success."""
    TOOL_ERROR = "tool_error"
    """The call itself was at fault (bad arguments, exception in the model's code); the model sees the text."""
    TIMEOUT = "timeout"
    """The per-call time limit fired; the model sees it."""
    LIMIT = "limit"
    """A budget of the trajectory was used up; nothing ran; the model sees it."""
    INFRA_ERROR = "infra_error"
    """The machinery failed. Never shown to the model, never becomes a reward."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a call comes from: for seeds, logs and caches. `path` names the place in the tree.

    `question`: the task's; `reasoning`: the last of the policy's own text before the call. Only tools that declare
    `reads_context = True` get these two. `session`: the state of the trajectory, for tools that keep one.
    """

    task_id: str = ""
    path: str = ""
    seed: int = 0
    call_index: int = 0
    question: str = ""
    reasoning: str = ""
    session: "Session | None" = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back. `text` is what the model may see; `data` is for programs; `latency` in seconds."""

    status: ToolStatus
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    latency: float = 0.0
    cached: bool = False
    score: float | None = None
    """How well what came back fits the call, on the tool's own scale (a retriever's best score); None: it has none."""
    empty: bool = False
    """Nothing was found or printed, although `text` says so in words."""


class ToolError(Exception):
    """What a tool raises when the call itself is at fault; its text is what the model reads."""


class TransientError(Exception):
    """What a tool raises for a failure that may be over in a moment: no connection, 429, 5xx.

    Calls of idempotent tools are then tried again; everybody else's become `infra_error`. `after`: seconds that the
    other side asks to wait (Retry-After), None if it asks for nothing.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Tool(Protocol):
    """A named function that a model can call.

    `call` is a coroutine function, or a plain function, which then runs in a thread of its own and may block. Both
    return a ToolResult, or a str for a success with that text. Some attributes are optional:

    `stateless = True` says that the result depends on the arguments and the seed alone; then equal calls of one group
    may run once. Tools without it are shared among equal histories only.
    `idempotent`: a call may be made again without harm (default: as `stateless`); only then is anything retried.
    `environment` (see `sessions`): the state that its calls of one trajectory build on.
    `reads_context = True`: the context is to hold the question and the policy's last reasoning.
    `blocking = True`: the coroutine blocks and is to run in a thread, on an event loop of its own.
    `hints`: limits by name (as in `LimitedSettings`), for settings that say nothing of them.
    `close()`, plain or a coroutine function, releases what the tool holds at the end of the run.

    A call that is at fault is a `tool_error`, returned or raised as ToolError. Every other exception is an
    `infra_error`; it may say by two attributes what it is: `fault`, a short name under which metrics count it (a result
    says so by `data["fault"]`), and `outage = False` if it tells nothing about whether the tool is up.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""

    def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> Awaitable[ToolResult | str] | ToolResult | str: ...
