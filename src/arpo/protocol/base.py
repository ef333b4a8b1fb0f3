"""The dialect contract: between text and calls, results and answers.

A dialect parses only what the policy itself sampled and renders everything else as token ids, so nothing downstream
ever re-tokenises, and no tool result can open a call or end a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from arpo.task import Task
from arpo.tree import Finish


class ParseCode(StrEnum):
    """Why a segment holds no (clean) call. The model gets a short notice for those that waste a turn."""

    TRUNCATED = "truncated"
    """An opening tag without its closing tag when the tokens ran out."""
    STRAY_CLOSE = "stray_close"
    """A closing tag without an opener in the same segment."""
    EMPTY_ARGS = "empty_args"
    """A call with nothing in it."""
    UNKNOWN_TAG = "unknown_tag"
    """`<Search>`, `< search >`, full-width brackets: no call."""
    UNKNOWN_TOOL = "unknown_tool"
    """A well-formed call of a tool that is not there."""
    FORGED_RESULT = "forged_result"
    """The policy wrote a tool result itself."""
    CALL_AFTER_ANSWER = "call_after_answer"
    """An answer and a call in one segment; the call was the stop reason and wins."""
    INVALID_JSON = "invalid_json"
    """A call whose text is not what the dialect writes calls in (JSON, XML parameters)."""
    INVALID_ARGS = "invalid_args"
    """Arguments that do not fit the tool's schema, and no conversion without loss makes them fit."""
    SEVERAL_CALLS = "several_calls"
    """More than one call in a segment; the first is run."""
    DRAFT_CALL = "draft_call"
    """A call inside the reasoning block, which is not run."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the policy made. `arguments` fits the tool's schema; `repaired` names what was mended, or is None."""

    tool: str
    arguments: Mapping[str, Any]
    repaired: str | None = None


@dataclass(frozen=True, slots=True)
class ParseResult:
    """What one policy segment says. At most one of `call` and `answer` is set; `code` may stand beside either.

    `detail`: a sentence for the policy about the fault, where the dialect knows more than the code says. `meant`: the
    segment was meant as a call although no stop string ended it (dialects whose calls end with the end token); it then
    earns a correction like any malformed call. `goes_on`: a stop string stood where it ends nothing (in the reasoning
    block); the policy samples on as if nobody had stopped it.
    """

    call: Call | None = None
    answer: str | None = None
    code: ParseCode | None = None
    detail: str = ""
    meant: bool = False
    goes_on: bool = False


class ToolSpec(Protocol):
    """What a prompt says of a tool; every `arpo.tools.Tool` is one."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""


class Dialect(Protocol):
    """One file per dialect; holds the tokenizer."""

    name: str
    stop: tuple[str, ...]
    """Strings that end a policy segment (closing tags of the offered tools)."""
    end_tokens: tuple[int, ...]

    def prompt(self, task: Task) -> np.ndarray:
        """The prompt's token ids, int32 `[T]`, system prompt and generation prompt included."""
        ...

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """Read one whole policy segment (its own tokens alone, pieces between results joined)."""
        ...

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A tool result's text as tokens, int32 `[T]`; the content yields no special token of the tokenizer.

        `finish`: how the policy's segment before it ended; after STOP its end token is there already and is not
        repeated. `call`: what is answered, for formats whose results name their tool.
        """
        ...

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A message of the harness to the policy, as tokens; `finish` and `call` as in `result`."""
        ...

    def answer(self, policy_text: str) -> str | None:
        """The final answer in the policy's own text, or None."""
        ...

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        """What is malformed in a trajectory's policy segments (texts, in order); empty means well-formed."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...
