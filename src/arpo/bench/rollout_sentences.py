"""Calls from a policy that was never taught to make any: each of its sentences is a search.

A small chat model that is shown the tags for the first time ignores them, and a rollout without calls would say nothing
about waiting for tools. So the end of a sentence ends the segment and its text is the query. The tokens are the model's
own and the tool is real; the conversation makes no sense, which costs nothing.
"""

from collections.abc import Sequence

import numpy as np

from arpo.protocol.base import Call, Dialect, ParseResult
from arpo.task import Task
from arpo.tree import Finish


class SentenceDialect:
    """Another dialect's prompts and results; calls are sentences. Implements `arpo.protocol.base.Dialect`."""

    name = "sentences"
    stop: tuple[str, ...] = (".", "?", "!")

    def __init__(self, dialect: Dialect, tool: str = "search", argument: str = "query") -> None:
        self._dialect, self._tool, self._argument = dialect, tool, argument
        self.end_tokens = dialect.end_tokens

    def prompt(self, task: Task) -> np.ndarray:
        return self._dialect.prompt(task)

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """A call, if a sentence ended; nothing otherwise, so the trajectory is over."""
        if finish is not Finish.CALL:
            return ParseResult()
        return ParseResult(call=Call(self._tool, {self._argument: self._dialect.decode(tokens).strip()}))

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return self._dialect.result(text, finish=finish, call=call)

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return self._dialect.notice(text, finish=finish, call=call)

    def answer(self, policy_text: str) -> str | None:
        return None

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        return []

    def decode(self, tokens: Sequence[int]) -> str:
        return self._dialect.decode(tokens)
