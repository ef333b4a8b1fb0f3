"""The policy's own dialect with other instructions and other tools.

A method that only changes what the tools do keeps the language that the model calls tools in, be it the tags of a
trained policy or the model's native calls: another format would be a second difference. Format is not judged: what
counts is the answer of the last segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from arpo.errors import ConfigError
from arpo.evaluate.agents.voice import NO_BLOCK, Voice, voice_of
from arpo.protocol.base import Call, Dialect, ParseResult, ToolSpec
from arpo.protocol.tags import TagsDialect
from arpo.task import Message, Task
from arpo.tree import Finish


@dataclass(frozen=True)
class Example:
    """A trajectory to show: `steps` are (thought, place of the tool among the tools, its text, its result)."""

    question: str
    steps: tuple[tuple[str, int, str, str], ...]
    conclusion: str
    answer: str


@runtime_checkable
class _Adaptable(Protocol):
    def with_tools(self, tools: Sequence[ToolSpec]) -> Any: ...


class Prompted:
    """`dialect` for `tools`, with `instructions` before the task. `voice`: the same model without a dialect."""

    def __init__(
        self, dialect: Dialect, tools: Sequence[ToolSpec], instructions: str, agent: str, example: Example
    ) -> None:
        """`agent`: the method, for errors. Raises ConfigError if the dialect or a tool does not fit.

        `example` is shown in the tags dialect, which no model knows untrained; others know their calls.
        """
        self.voice: Voice = voice_of(dialect, agent, NO_BLOCK)
        if not isinstance(dialect, _Adaptable):
            raise ConfigError(
                f"the agent {agent!r} needs a dialect that can be given other tools; {dialect.name!r} is none"
            )
        self.tokenizer = self.voice.tokenizer
        self._dialect: Dialect = dialect.with_tools(tools)
        shown = tagged(example, tools) if isinstance(dialect, TagsDialect) else ()
        self._before = (Message("system", instructions), *shown)
        self.name, self.stop, self.end_tokens = dialect.name, self._dialect.stop, self._dialect.end_tokens

    def prompt(self, task: Task) -> np.ndarray:
        """The dialect's prompt, with the instructions before its own and the example before the question."""
        own = [message for message in task.messages if message.role == "system"]
        rest = [message for message in task.messages if message.role != "system"]
        return self._dialect.prompt(replace(task, messages=(*own, *self._before, *rest)))

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


def tagged(example: Example, tools: Sequence[ToolSpec]) -> tuple[Message, Message]:
    """A question and a trajectory of the tags dialect that answers it, as a conversation."""
    steps = "".join(
        f"{thought} <{tools[place].name}> {text} </{tools[place].name}>\n<result>\n{result}\n</result>\n"
        for thought, place, text, result in example.steps
    )
    end = f"{example.conclusion} <answer> \\boxed{{{example.answer}}} </answer>"
    return Message("user", example.question), Message("assistant", steps + end)


def prompted(dialect: Dialect, agent: str) -> Prompted:
    """The dialect as `fit` gave it. Raises TypeError for any other."""
    if not isinstance(dialect, Prompted):
        raise TypeError(f"the agent {agent!r} solves with the agent that its fit gave")
    return dialect
