"""The trajectories of one prompt while they run: exactly M, and none waits for another.

Each trajectory is a coroutine of its own: it samples until a call, waits for its own tool, samples on. Trajectories
meet only in the engine, which batches what is asked at the same time, and in the branch budget. After each tool result
the first k tokens (one, for `at = "state"`) are asked for alone, the rule decides, and sampling goes on; where nothing
opened the pieces become one node. Top-ups start all together as soon as no further branch can come.

Seeds: engine call number n (from 0) of trajectory `path` draws from derive(*seed_parts, task id, path, n, "sample");
look-ahead is a call of its own with purpose "lookahead". Root i is "r{i}", a child "{path}/{depth}.{number}", and
top-ups go on counting where the roots ended. Whether a segment is asked for in two pieces depends on settings and
place, never on timing (but with budget order "arrival"), so a tree depends on nothing but its seeds. The pause itself
is not free of effect: a segment sampled in two pieces draws other numbers than the same segment in one, so a group with
branch budget and one without agree up to the first tool result, not beyond.
"""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.errors import DataError
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.rollout.agent import Agent
from arpo.rollout.assemble import assemble
from arpo.rollout.branching import Reading, decide
from arpo.rollout.budget import Budget, Claim, child_path
from arpo.rollout.entropy import window_mean
from arpo.rollout.notices import NO_CALLS_LEFT, correction
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.rollout.walk import Point, Walk
from arpo.seeds import derive, uniform
from arpo.task import Task
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tree import Finish, RolloutTree, Segment, Source, ToolEvent

_NOTHING = np.empty(0, np.float32)
_NOT_EXECUTED = (ToolStatus.LIMIT, ToolStatus.INFRA_ERROR)


class Group:
    """One task's rollout. Use once: `await Group(...).run()`."""

    def __init__(
        self,
        task: Task,
        agent: Agent,
        settings: RolloutSettings,
        entropy: EntropySettings,
        seed_parts: tuple[str | int, ...],
    ) -> None:
        engine, dialect = agent.engine, agent.dialect
        self.task, self.engine, self.dialect, self.toolbox = task, engine, dialect, agent.toolbox
        self.settings, self.entropy, self.vocab_size = settings, entropy, agent.vocab_size
        self.seed_parts = (*seed_parts, task.id)
        rule = settings.branching
        self.at = "after_window" if isinstance(rule, NoBranching) else rule.at
        self.lookahead = not isinstance(rule, NoBranching) and rule.lookahead
        self.width = 1 if self.at == "state" and not self.lookahead else entropy.window
        self.has_entropy = engine.capabilities.entropy != "none"
        self.prompt = np.asarray(dialect.prompt(task), np.int32)
        self.room = _room(task, len(self.prompt), settings, engine.capabilities)
        self.empty_result = len(dialect.result(""))
        self.budget = Budget(
            settings.total - settings.initial,
            settings.budget,
            settings.branches,
            lambda path, depth: derive(*self.seed_parts, path, depth, "rank"),
        )
        self.roots: list[Walk] = []
        self.branches: list[tuple[Claim, int, Walk]] = []
        self.top_ups: list[Walk] = []
        self.points: dict[tuple[str, int], Point] = {}
        self.wasted_tokens = 0

    async def run(self) -> RolloutTree:
        """Start the roots, wait for everything that comes of them, and put the tree together."""
        may_branch = self.budget.left > 0
        self.roots = [self._root(number, may_branch) for number in range(self.settings.initial)]
        try:
            async with asyncio.TaskGroup() as self.running:
                for walk in self.roots:
                    self.running.create_task(self._follow(walk))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        opened = [walk for _, _, walk in sorted(self.branches, key=lambda branch: branch[:2])]
        return assemble(
            self.task,
            self.prompt,
            [*self.roots, *opened, *self.top_ups],
            tuple(self.points.values()),
            wasted_tokens=self.wasted_tokens,
            top_ups=len(self.top_ups),
        )

    def _root(self, number: int, may_branch: bool) -> Walk:
        walk = Walk(f"r{number}", self.prompt.tolist(), self.room, may_branch)
        if may_branch:
            self.budget.enter(walk.path)
        return walk

    async def _follow(self, walk: Walk) -> None:
        """One trajectory from where it stands to its end."""
        while await self._respond(walk, await self._segment(walk)):
            pass
        self._claims_no_more(walk)

    def _claims_no_more(self, walk: Walk) -> None:
        self.budget.leave(walk.path)
        self._settle()

    def _settle(self) -> None:
        """Open what the budget is certain of; start the top-ups once no branch can come any more."""
        for grant in self.budget.settle():
            point = self.points[grant.claim.path, grant.claim.depth]
            point.opened, point.note = grant.opened, grant.note
            for number, child in enumerate(point.children[: grant.opened]):
                self.branches.append((grant.claim, number, child))
                self.running.create_task(self._follow(child))
        if self.budget.left and not self.top_ups and not self.budget.can_still_open():
            first = self.settings.initial
            self.top_ups = [self._root(number, False) for number in range(first, first + self.budget.left)]
            for walk in self.top_ups:
                self.running.create_task(self._follow(walk))

    # Sampling

    async def _segment(self, walk: Walk) -> Finish:
        """Sample to the end of a policy segment; if a tool result came last, decide on the way."""
        if walk.decision_due:
            walk.decision_due = False
            return await self._decide(walk)
        finish = await self._draw(walk, walk.room)
        if walk.origin is None and len(walk.pieces) == 1:
            walk.h_root = self._mean(walk.pieces[0].entropies, self.entropy.window)
        return finish

    async def _draw(self, walk: Walk, limit: int) -> Finish:
        """One engine call of at most `limit` tokens; WINDOW if it was cut there although room is left."""
        piece = await self._sample(walk, min(limit, walk.room), "sample")
        if piece.finish is Finish.LENGTH and len(piece) < walk.room:
            piece = replace(piece, finish=Finish.WINDOW)
        walk.append(piece)
        return piece.finish

    async def _sample(self, walk: Walk, max_tokens: int, purpose: str) -> Segment:
        params = SampleParams(
            max_tokens=max_tokens,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            stop=self.dialect.stop,
            end_tokens=self.dialect.end_tokens,
        )
        seed = derive(*self.seed_parts, walk.path, walk.drawn, purpose)
        walk.drawn += 1
        return await self.engine.sample(walk.tokens, params, seed)

    # Deciding

    async def _decide(self, walk: Walk) -> Finish:
        """After a tool result: measure, decide, claim from the budget, and sample the segment to its end."""
        left = walk.room - (self.width if self.at == "after_window" else 0)
        pausing = walk.may_branch and self.budget.worth_pausing(walk.path, left)
        if self.lookahead:
            fresh = await self._peek(walk) if pausing else _NOTHING
            self._record(walk, self._forks(walk, pausing), fresh, 0, False)
            return await self._draw(walk, walk.room)
        forks = self._forks(walk, pausing and self.at != "after_window")
        finish = await self._draw(walk, self.width if pausing else walk.room)
        if self.at == "after_window":
            forks = self._forks(walk, pausing and finish is Finish.WINDOW)
        ended = finish is not Finish.WINDOW and len(walk.open_tokens) <= self.width
        self._record(walk, forks, walk.pieces[-1].entropies, 1, ended)
        return await self._draw(walk, walk.room) if finish is Finish.WINDOW else finish

    async def _peek(self, walk: Walk) -> np.ndarray:
        """Entropies of k fresh tokens that are thrown away; they are paid for, so they are counted."""
        fresh = await self._sample(walk, min(self.width, walk.room), "lookahead")
        self.wasted_tokens += len(fresh)
        return fresh.entropies

    def _forks(self, walk: Walk, possible: bool) -> list[Walk]:
        """The children that would open here."""
        numbers = range(1, self.settings.branches + 1) if possible else ()
        return [walk.fork(child_path(walk.path, walk.depth, number)) for number in numbers]

    def _record(self, walk: Walk, forks: list[Walk], entropies: np.ndarray, drawn: int, ended: bool) -> None:
        """Ask the rule and hand its wish to the budget. `drawn`: pieces sampled since the tool result."""
        measured = entropies[: self.width]
        reading = Reading(
            h_root=walk.h_root,
            h_tool=self._mean(measured, self.width),
            measured=len(measured),
            ended=ended,
            draw=uniform(*self.seed_parts, walk.path, walk.depth, "branch"),
        )
        verdict = decide(self.settings.branching, reading, self.entropy, self.vocab_size, self.settings.branches)
        result = len(walk.pieces) - drawn
        cut = len(walk.pieces) if self.at == "after_window" else result
        point = Point(walk, walk.tool, walk.depth, reading.h_tool, verdict, result, cut, forks)
        self.points[walk.path, walk.depth] = point
        self._claim(walk, point)

    def _claim(self, walk: Walk, point: Point) -> None:
        wanted = point.verdict.wanted
        if wanted and not point.children:
            point.note = "budget spent"
        if not walk.may_branch:
            return
        if point.children and wanted:
            self.budget.claim(walk.path, wanted, point.verdict.gain)
        else:
            self.budget.skip(walk.path)
        if walk.calls >= self.settings.max_calls:
            self.budget.leave(walk.path)
        self._settle()

    def _mean(self, entropies: np.ndarray, window: int) -> float:
        return window_mean(entropies, window) if self.has_entropy else math.nan

    # Responding

    async def _respond(self, walk: Walk, finish: Finish) -> bool:
        """Answer what the policy segment asked for; False if the trajectory is over."""
        parsed = self.dialect.parse(walk.open_tokens, finish)
        if parsed.answer is not None or (parsed.call is None and finish is not Finish.CALL):
            return False
        if walk.calls >= self.settings.max_calls:
            return self._refuse(walk, parsed)
        walk.calls += 1
        if parsed.call is None or parsed.call.tool not in self.toolbox.names:
            return self._correct(walk, parsed)
        return await self._call(walk, parsed.call)

    def _refuse(self, walk: Walk, parsed: ParseResult) -> bool:
        """A call too many: one notice and a last chance to answer; after that the trajectory is over."""
        if walk.warned:
            return False
        walk.warned = True
        self._claims_no_more(walk)
        name, arguments = _named(parsed.call)
        event = ToolEvent(name, arguments, "limit", executed=False, redundant=(name, arguments) in walk.seen)
        return self._show(walk, Source.NOTICE, self.dialect.notice(NO_CALLS_LEFT), event)

    def _correct(self, walk: Walk, parsed: ParseResult) -> bool:
        """A segment that was meant as a call and is none costs a call and earns a correction."""
        name, arguments = _named(parsed.call)
        code = ParseCode.UNKNOWN_TOOL if parsed.call is not None else parsed.code
        event = ToolEvent(name, arguments, str(code or "malformed"), executed=False)
        text = correction(code, self.toolbox.names)
        return self._show(walk, Source.NOTICE, self.dialect.notice(text), event)

    async def _call(self, walk: Walk, call: Call) -> bool:
        name, arguments = _named(call)
        redundant = (name, arguments) in walk.seen
        walk.seen.add((name, arguments))
        if walk.room <= self.empty_result:
            walk.end(Finish.LENGTH, ToolEvent(name, arguments, "limit", executed=False, redundant=redundant))
            return False
        context = ToolContext(
            task_id=self.task.id,
            path=walk.path,
            seed=derive(*self.seed_parts, walk.path, walk.calls, "tool"),
            call_index=walk.calls - 1,
        )
        result = await self.toolbox.call(name, call.arguments, context)
        return self._receive(walk, result, _event(name, arguments, result, redundant))

    def _receive(self, walk: Walk, result: ToolResult, event: ToolEvent) -> bool:
        if result.status is ToolStatus.INFRA_ERROR:
            walk.end(Finish.ERROR, event)
            return False
        if result.status is ToolStatus.LIMIT:
            return self._show(walk, Source.NOTICE, self.dialect.notice(result.text), event)
        tokens = _cut(self.dialect.result(result.text), self.settings.max_result_tokens)
        if not self._show(walk, Source.TOOL, tokens, event):
            return False
        walk.depth += 1
        walk.tool = event.name
        walk.decision_due = True
        return True

    def _show(self, walk: Walk, source: Source, tokens: np.ndarray, event: ToolEvent) -> bool:
        """Append what the policy reads next; if no token would fit behind it, the trajectory ends instead."""
        if len(tokens) >= walk.room:
            walk.end(Finish.LENGTH, event)
            return False
        walk.append(Segment(np.asarray(tokens, np.int32), source, event=event))
        return True


def _room(task: Task, prompt_tokens: int, settings: RolloutSettings, capabilities: Capabilities) -> int:
    room = min(settings.max_tokens, capabilities.max_context - prompt_tokens)
    if room < 1:
        raise DataError(
            f"task {task.id}: its prompt of {prompt_tokens} tokens leaves no room in the engine's context of "
            f"{capabilities.max_context}; shorten the prompt, leave the task out, or use a model with a longer context"
        )
    return room


def _named(call: Call | None) -> tuple[str, str]:
    """Tool name and arguments in one canonical spelling, so that equal calls are equal."""
    if call is None:
        return "", ""
    return call.tool, json.dumps(dict(call.arguments), sort_keys=True, ensure_ascii=False)


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
