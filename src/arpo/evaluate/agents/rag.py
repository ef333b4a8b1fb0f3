"""Retrieve, then answer: the question itself is the query, what is found stands in the prompt, no further calls.

The usual baseline of retrieval-augmented generation (Lewis et al. 2020, arXiv 2005.11401, for the idea; here with a
frozen model and passages in its context). The passages are a tool's result in the tree, with their event, so the search
is counted like any other; they stand inside the user's turn, before the model's first token.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arpo.errors import ConfigError, DataError
from arpo.evaluate.agents.base import SeedParts, Solved, independent
from arpo.evaluate.agents.fitting import SEARCH, argument, need
from arpo.evaluate.agents.loop import Loop
from arpo.evaluate.agents.text import BOXED, TextDialect
from arpo.evaluate.agents.voice import Voice, plain_voice_of
from arpo.protocol.base import Call
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.walk import Walk
from arpo.task import Task
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus
from arpo.tree import Finish, Segment, Source, ToolEvent

INSTRUCTIONS = f"""Answer the user's question with the help of the passages below it, which a search has found. They \
may be incomplete or beside the point; then rely on what you know. Think step by step. {BOXED}"""
_PLACE = "arpo probe passages"


class RagDialect(TextDialect):
    """A prompt that stops where the passages begin; `result` holds them and the rest of the prompt."""

    name = "rag"

    def __init__(self, voice: Voice) -> None:
        super().__init__(voice, INSTRUCTIONS)
        self._tail = self._encoded(self._around([{"role": "user", "content": "question"}])[1])

    def prompt(self, task: Task) -> np.ndarray:
        """The prompt up to the passages, int32 `[T]`."""
        messages = [{"role": m.role, "content": self.voice.plain.disarm(m.content)} for m in task.messages]
        return self._encoded(self._around(messages)[0])

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """The passages and the rest of the prompt, int32 `[T]`."""
        return self.passages(text, len(text.encode()) + len(self._tail) + 1)

    def passages(self, text: str, limit: int) -> np.ndarray:
        """The same in at most `limit` tokens; what is too much is cut off the passages' end."""
        ids = self.voice.plain.encode(text.strip())
        return np.concatenate([np.array(ids, np.int32)[: max(limit - len(self._tail), 0)], self._tail])

    def _around(self, messages: Sequence[dict[str, Any]]) -> tuple[str, str]:
        """The rendered conversation before and behind the passages, which end the last message."""
        *earlier, last = messages
        asked = {**last, "content": f"{last['content']}\n\nPassages:\n{_PLACE}"}
        text = self.voice.template.text(self.voice.conversation(self.instructions, [*earlier, asked]))
        before, _, behind = text.rpartition(_PLACE)
        return before, behind

    def _encoded(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), np.int32)


class Rag:
    """One search for the question, then the answer."""

    name = "rag"
    about = "one search for the question, its passages in the prompt, an answer"

    def fit(self, agent: Agent) -> Agent:
        """The same model with the search tool alone."""
        tool = need(agent.toolbox, SEARCH, self.name)
        dialect = RagDialect(plain_voice_of(agent.dialect, self.name))
        return replace(agent, dialect=dialect, toolbox=agent.toolbox.only((tool.name,)))

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """See Method. Raises ConfigError if no call is allowed."""
        if settings.max_calls < 1:
            raise ConfigError("the agent 'rag' searches once; set rollout.max_calls to 1 or more")
        loop = Loop(task, agent, independent(settings), seed_parts)

        async def follow(walk: Walk) -> None:
            if await _retrieved(loop, walk, agent.toolbox.tools[0]):
                await loop.sample(walk)

        return Solved(await loop.run(follow))


async def _retrieved(loop: Loop, walk: Walk, tool: Tool) -> bool:
    """Put the passages into the walk; False if the search broke."""
    arguments = {argument(tool): loop.task.question.strip()}
    spelling = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
    context = ToolContext(task_id=loop.task.id, path=walk.path, session=walk.session, question=loop.task.question)
    run = await loop.calls.call(walk.tokens, tool.name, arguments, spelling, context)
    walk.calls += 1
    event = _event(tool.name, spelling, run.result)
    if run.result.status is ToolStatus.INFRA_ERROR:
        loop.fail(walk, event)
    else:
        _show(loop, walk, run.result, event)
    walk.runs[len(walk.pieces) - 1] = run
    return run.result.status is not ToolStatus.INFRA_ERROR


def _show(loop: Loop, walk: Walk, result: ToolResult, event: ToolEvent) -> None:
    dialect, limit = loop.agent.dialect, min(loop.settings.max_result_tokens, walk.room // 2)
    if not isinstance(dialect, RagDialect):
        raise TypeError("the agent 'rag' solves with the agent that its fit gave")
    tokens = dialect.passages(result.text, limit)
    if len(tokens) >= walk.room:
        raise DataError(
            f"task {loop.task.id}: {walk.room} response tokens do not hold the end of the prompt and an answer; raise "
            "rollout.max_tokens, or use a model with a longer context"
        )
    walk.append(Segment(tokens, Source.TOOL, event=event))


def _event(name: str, spelling: str, result: ToolResult) -> ToolEvent:
    ran = result.status not in (ToolStatus.LIMIT, ToolStatus.INFRA_ERROR)
    return ToolEvent(name, spelling, str(result.status), result.latency, result.cached, executed=ran)
