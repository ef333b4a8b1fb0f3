"""The policy's own dialect with other instructions and other tools.

A method that only changes what the tools do keeps the language that the model calls tools in, be it the tags of a
trained policy or the model's native calls: another format would be a second difference. Format is not judged: what
counts is the answer of the last segment.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from arpo.errors import ConfigError
from arpo.evaluate.agents.voice import Voice, voice_of
from arpo.protocol.base import Call, Dialect, ParseResult, ToolSpec
from arpo.task import Message, Task
from arpo.tree import Finish


@runtime_checkable
class _Adaptable(Protocol):
    def with_tools(self, tools: Sequence[ToolSpec]) -> Any: ...


class Prompted:
    """`dialect` for `tools`, with `instructions` before the task. `voice`: the same model without a dialect."""

    def __init__(self, dialect: Dialect, tools: Sequence[ToolSpec], instructions: str, agent: str) -> None:
        """`agent`: the method, for errors. Raises ConfigError if the dialect or a tool does not fit."""
        self.voice: Voice = voice_of(dialect, agent, {"enable_thinking": False})
        if not isinstance(dialect, _Adaptable):
            raise ConfigError(
                f"the agent {agent!r} needs a dialect that can be given other tools; {dialect.name!r} is none"
            )
        self.tokenizer = self.voice.tokenizer
        self._dialect: Dialect = dialect.with_tools(tools)
        self._instructions = Message("system", instructions)
        self.name, self.stop, self.end_tokens = dialect.name, self._dialect.stop, self._dialect.end_tokens

    def prompt(self, task: Task) -> np.ndarray:
        """The dialect's prompt, with the instructions before its own."""
        return self._dialect.prompt(replace(task, messages=(self._instructions, *task.messages)))

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """As the dialect."""
        return self._dialect.parse(tokens, finish)

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """As the dialect."""
        return self._dialect.result(text, finish=finish, call=call)

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """As the dialect."""
        return self._dialect.notice(text, finish=finish, call=call)

    def answer(self, policy_text: str) -> str | None:
        """As the dialect."""
        return self._dialect.answer(policy_text)

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        """`no answer`, or nothing."""
        return [] if pieces and self.answer(pieces[-1]) is not None else ["no answer"]

    def decode(self, tokens: Sequence[int]) -> str:
        """As the dialect."""
        return self._dialect.decode(tokens)


def prompted(dialect: Dialect, agent: str) -> Prompted:
    """The dialect as `fit` gave it. Raises TypeError for any other."""
    if not isinstance(dialect, Prompted):
        raise TypeError(f"the agent {agent!r} solves with the agent that its fit gave")
    return dialect
