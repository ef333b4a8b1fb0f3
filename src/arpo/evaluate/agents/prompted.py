"""The policy's own dialect with other instructions and other tools.

A method that only changes what the tools do keeps the language that the model calls tools in, be it the tags of a
trained policy or the model's native calls: another format would be a second difference. Format is not judged: what
counts is the answer of the last segment.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from arpo.errors import ConfigError
from arpo.evaluate.agents.voice import NO_BLOCK, Voice, voice_of
from arpo.protocol.arguments import Schemas
from arpo.protocol.base import Call, Dialect, ParseResult, ToolSpec
from arpo.protocol.hermes import HermesDialect
from arpo.protocol.tags import TagsDialect
from arpo.protocol.wrapped import CLOSE, OPEN
from arpo.task import Message, Task
from arpo.tree import Finish

Example = Sequence[str | tuple[int, str]]
"""Texts, and calls as (place among the tools, its text), in the order of a trajectory."""


@runtime_checkable
class _Adaptable(Protocol):
    def with_tools(self, tools: Sequence[ToolSpec]) -> Any: ...


class Prompted:
    """`dialect` for `tools`, with `instructions` before the task. `voice`: the same model without a dialect."""

    def __init__(
        self, dialect: Dialect, tools: Sequence[ToolSpec], instructions: str, agent: str, example: Example = ()
    ) -> None:
        """`agent`: the method, for errors. Raises ConfigError if the dialect or a tool does not fit."""
        self.voice: Voice = voice_of(dialect, agent, NO_BLOCK)
        if not isinstance(dialect, _Adaptable):
            raise ConfigError(
                f"the agent {agent!r} needs a dialect that can be given other tools; {dialect.name!r} is none"
            )
        self.tokenizer = self.voice.tokenizer
        self._dialect: Dialect = dialect.with_tools(tools)
        shown = spelled(dialect, tools, example)
        self._instructions = Message("system", f"{instructions}\n\nAn example:\n{shown}" if shown else instructions)
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


def spelled(dialect: Dialect, tools: Sequence[ToolSpec], example: Example) -> str:
    """An example in the dialect's own calls; "" in dialects of models that know their calls without one."""
    if not isinstance(dialect, TagsDialect | HermesDialect):
        return ""
    return "\n".join(part if isinstance(part, str) else _call(dialect, tools[part[0]], part[1]) for part in example)


def _call(dialect: Dialect, tool: ToolSpec, text: str) -> str:
    if isinstance(dialect, TagsDialect):
        return f"<{tool.name}> {text} </{tool.name}>"
    arguments = {Schemas([tool]).sole_text(tool.name) or "text": text}
    return f"{OPEN}\n{json.dumps({'name': tool.name, 'arguments': arguments})}\n{CLOSE}"


def prompted(dialect: Dialect, agent: str) -> Prompted:
    """The dialect as `fit` gave it. Raises TypeError for any other."""
    if not isinstance(dialect, Prompted):
        raise TypeError(f"the agent {agent!r} solves with the agent that its fit gave")
    return dialect
