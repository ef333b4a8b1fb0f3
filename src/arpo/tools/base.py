"""The tool contract."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


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
    """Where a call comes from: for seeds, logs and caches. `path` names the place in the tree."""

    task_id: str = ""
    path: str = ""
    seed: int = 0
    call_index: int = 0


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


class Tool(Protocol):
    """A named function that a model can call.

    `call` is a coroutine function, or a plain function, which then runs in a thread of its own and may block. Both
    return a ToolResult, or a str for a success with that text. Three attributes are optional:

    `stateless = True` says that the result depends on the arguments and the seed alone; then equal calls of one group
    may run once. Tools without it are shared among equal histories only.
    `blocking = True`: the coroutine blocks and is to run in a thread, on an event loop of its own.
    `close()`, plain or a coroutine function, releases what the tool holds at the end of the run.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""

    def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> Awaitable[ToolResult | str] | ToolResult | str: ...
