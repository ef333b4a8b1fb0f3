"""What the policy gets to read after a segment of its own: a tool's result, a correction, a last chance, or nothing.

A call is parsed from the policy's own tokens only and answered through the one door to all tools; results and notices
are appended as ids. Every segment that was meant as a call is charged, so no trajectory can go on for ever.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from arpo.errors import ConfigError
from arpo.protocol.base import Call, Dialect, ParseCode, ParseResult
from arpo.rollout.branching import ToolOutcome
from arpo.rollout.notices import NO_CALLS_LEFT, correction
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.sharing import Run, SharedCalls
from arpo.rollout.walk import Walk
from arpo.task import Task
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.breaker import DROP_GROUP
from arpo.tools.sessions import Step, environment_of
from arpo.tools.toolbox import ToolBox
from arpo.tree import Finish, Segment, Source, ToolEvent

_NOT_EXECUTED = (ToolStatus.LIMIT, ToolStatus.INFRA_ERROR)
_WITH_EFFECT = (ToolStatus.OK, ToolStatus.TOOL_ERROR)
_REASONING = 2000
"""Characters of the policy's own text before a call that a tool may read."""


class Turns:
    """Answers the segments of one group's trajectories."""

    def __init__(
        self, task: Task, dialect: Dialect, calls: SharedCalls, toolbox: ToolBox, settings: RolloutSettings
    ) -> None:
        self._task, self._dialect, self._calls, self._tools = task, dialect, calls, toolbox.names
        self._settings = settings
        self._readers = {tool.name for tool in toolbox.tools if getattr(tool, "reads_context", False)}
        self._environments = {
            tool.name: environment.name for tool in toolbox.tools if (environment := environment_of(tool)) is not None
        }
        self.dropped = False
        """A tool that is out of order has asked for the whole group to be dropped."""
        self._empty_result = len(dialect.result(""))
        if 2 * self._empty_result > settings.max_result_tokens:
            raise ConfigError(
                f"rollout.max_result_tokens = {settings.max_result_tokens} is too short for the {self._empty_result} "
                f"tokens around each result; set it to {2 * self._empty_result} or more"
            )

    async def respond(self, walk: Walk, finish: Finish) -> bool:
        """Answer what the segment that ended with `finish` asked for; False if the trajectory is over."""
        parsed = self._dialect.parse(walk.open_tokens, finish)
        if parsed.goes_on:
            walk.pieces[-1] = replace(walk.pieces[-1], finish=Finish.WINDOW if walk.room else Finish.LENGTH)
            return walk.room > 0
        if parsed.answer is not None or (parsed.call is None and finish is not Finish.CALL and not parsed.meant):
            return False
        if walk.calls >= self._settings.max_calls:
            return self._refuse(walk, parsed)
        walk.calls += 1
        if parsed.call is None or parsed.call.tool not in self._tools:
            return self._correct(walk, parsed)
        return await self._call(walk, parsed.call, _note(parsed))

    def _refuse(self, walk: Walk, parsed: ParseResult) -> bool:
        """A call too many: one notice and a last chance to answer; after that the trajectory is over."""
        if walk.warned:
            return False
        walk.warned = True
        name, arguments = _named(parsed.call)
        event = ToolEvent(name, arguments, "limit", executed=False, redundant=(name, arguments) in walk.seen)
        notice = self._dialect.notice(NO_CALLS_LEFT, finish=walk.pieces[-1].finish, call=parsed.call)
        return self._show(walk, Source.NOTICE, notice, event)

    def _correct(self, walk: Walk, parsed: ParseResult) -> bool:
        """A segment that was meant as a call and is none costs a call and earns a correction."""
        name, arguments = _named(parsed.call)
        code = ParseCode.UNKNOWN_TOOL if parsed.call is not None else parsed.code
        event = ToolEvent(name, arguments, str(code or "malformed"), executed=False)
        text = correction(code, self._tools, parsed.detail)
        notice = self._dialect.notice(text, finish=walk.pieces[-1].finish, call=parsed.call)
        return self._show(walk, Source.NOTICE, notice, event)

    async def _call(self, walk: Walk, call: Call, note: str) -> bool:
        name, arguments = _named(call)
        redundant = (name, arguments) in walk.seen
        walk.seen.add((name, arguments))
        if walk.room <= self._empty_result:
            walk.end(Finish.LENGTH, ToolEvent(name, arguments, "limit", executed=False, redundant=redundant))
            return False
        run = await self._calls.call(walk.tokens, name, call.arguments, arguments, self._context(walk, name))
        self._remember(walk, name, call.arguments, run)
        event = replace(_event(name, arguments, run.result, redundant), note=note)
        goes_on = self._receive(walk, call, run.result, event)
        walk.runs[len(walk.pieces) - 1] = run
        return goes_on

    def _context(self, walk: Walk, name: str) -> ToolContext:
        context = ToolContext(task_id=self._task.id, path=walk.path, call_index=walk.calls - 1, session=walk.session)
        if name not in self._readers:
            return context
        reasoning = self._dialect.decode(walk.open_tokens)[-_REASONING:]
        return replace(context, question=self._task.question, reasoning=reasoning)

    def _remember(self, walk: Walk, name: str, arguments: Mapping[str, Any], run: Run) -> None:
        """Log a call that changed a state, and take note of a tool that wants the group dropped."""
        if name in self._environments and run.result.status in _WITH_EFFECT:
            walk.session.append(Step(self._environments[name], name, arguments, run.seed))
        if run.result.status is ToolStatus.INFRA_ERROR and run.result.data.get(DROP_GROUP):
            self.dropped = True

    def _receive(self, walk: Walk, call: Call, result: ToolResult, event: ToolEvent) -> bool:
        finish = walk.pieces[-1].finish
        if result.status is ToolStatus.INFRA_ERROR:
            walk.end(Finish.ERROR, event)
            return False
        if result.status is ToolStatus.LIMIT:
            return self._show(walk, Source.NOTICE, self._dialect.notice(result.text, finish=finish, call=call), event)
        tokens = _cut(self._dialect.result(result.text, finish=finish, call=call), self._settings.max_result_tokens)
        if not self._show(walk, Source.TOOL, tokens, event):
            return False
        walk.depth += 1
        walk.tool = event.name
        walk.outcome = ToolOutcome(str(result.status), result.empty or not result.text.strip(), result.score)
        walk.decision_due = True
        return True

    def _show(self, walk: Walk, source: Source, tokens: np.ndarray, event: ToolEvent) -> bool:
        """Append what the policy reads next; if no token would fit behind it, the trajectory ends instead."""
        if len(tokens) >= walk.room:
            walk.end(Finish.LENGTH, event)
            return False
        walk.append(Segment(np.asarray(tokens, np.int32), source, event=event))
        return True


def _named(call: Call | None) -> tuple[str, str]:
    """Tool name and arguments in one canonical spelling, so that equal calls are equal."""
    if call is None:
        return "", ""
    return call.tool, json.dumps(dict(call.arguments), sort_keys=True, ensure_ascii=False)


def _note(parsed: ParseResult) -> str:
    """What the dialect reports beside a call that is executed."""
    mended = parsed.call.repaired if parsed.call is not None else None
    return ", ".join(str(note) for note in (mended, parsed.code) if note)


def _event(name: str, arguments: str, result: ToolResult, redundant: bool) -> ToolEvent:
    return ToolEvent(
        name=name,
        arguments=arguments,
        status=str(result.status),
        latency=result.latency,
        cached=result.cached,
        executed=result.status not in _NOT_EXECUTED,
        redundant=redundant,
    )


def _cut(tokens: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` tokens: the head and the tail, where the frame of a result and its ends are."""
    if len(tokens) <= limit:
        return tokens
    tail = limit // 2
    return np.concatenate([tokens[: limit - tail], tokens[len(tokens) - tail :]])
