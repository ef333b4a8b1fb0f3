"""The trajectories of one prompt while they run: exactly M, and none waits for another.

Each trajectory is a coroutine of its own: it samples until a call, waits for its own tool, samples on. Trajectories
meet only in the engine, which batches what is asked at the same time, in the calls that they share, and in the branch
budget. After each tool result the first k tokens (one, for `at = "state"`) are asked for alone, the rule decides, and
sampling goes on; where nothing opened the pieces become one node. With `at = "stale_state"` nobody pauses: what the
rule reads is there when the result comes. Top-ups start all together as soon as no further branch can come.

Seeds: engine call number n (from 0) of trajectory `path` draws from derive(*seed_parts, task id, path, n, "sample");
look-ahead is a call of its own with purpose "lookahead". Root i is "r{i}", a child "{path}/{depth}.{number}", and
top-ups go on counting where the roots ended. Whether a segment is asked for in two pieces depends on settings and
place, never on timing (unless budget.order is "arrival"), so a tree depends on nothing but its seeds. The pause itself
is not free of effect: a segment sampled in two pieces draws other numbers than the same segment in one, so a group with
branch budget and one without agree up to the first tool result, not beyond.

A request that the engine could not answer ends its trajectory, which then has no reward; the others go on. An engine
that is gone ends the group. A tool that is out of order may ask for the whole group to be dropped: then no further call
is made, and the group has its M trajectories, none of which has a reward.
"""

import asyncio
import math
from dataclasses import replace

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.errors import DataError, EngineDownError, EngineError
from arpo.rollout.agent import Agent
from arpo.rollout.assemble import assemble
from arpo.rollout.branching import Reading, decide, monitored_initial
from arpo.rollout.budget import Budget, Claim, child_path
from arpo.rollout.entropy import slack_mean, window_mean
from arpo.rollout.settings import AepoRule, EntropySettings, NoBranching, RolloutSettings
from arpo.rollout.sharing import SharedCalls, mark_shared
from arpo.rollout.turns import Turns
from arpo.rollout.walk import Point, Walk
from arpo.seeds import derive, uniform
from arpo.task import Task
from arpo.tree import Finish, RolloutTree, Segment, Source

_NOTHING = Segment(np.empty(0, np.int32), Source.POLICY)


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
        self.task, self.agent, self.settings, self.entropy = task, agent, settings, entropy
        self.engine = agent.engine
        self.seed_parts = (*seed_parts, task.id)
        rule = settings.branching
        self.at = "after_window" if isinstance(rule, NoBranching) else rule.at
        self.lookahead = not isinstance(rule, NoBranching) and rule.lookahead
        self.width = 1 if self.at == "state" and not self.lookahead else entropy.window
        self.has_entropy = agent.engine.capabilities.entropy != "none"
        self.prompt = np.asarray(agent.dialect.prompt(task), np.int32)
        self.room = _room(task, len(self.prompt), settings, agent.engine.capabilities)
        calls = SharedCalls(agent.toolbox, settings.share_calls, self.seed_parts)
        self.turns = Turns(task, agent.dialect, calls, agent.toolbox, settings)
        self.budget = self._budget(settings.total - settings.initial)
        self.roots: list[Walk] = []
        self.branches: list[tuple[Claim, int, Walk]] = []
        self.top_ups: list[Walk] = []
        self.points: dict[tuple[str, int], Point] = {}
        self.wasted_tokens = 0

    def _budget(self, units: int) -> Budget:
        def rank(path: str, depth: int) -> int:
            return derive(*self.seed_parts, path, depth, "rank")

        return Budget(units, self.settings.budget, self.settings.branches, rank)

    async def run(self) -> RolloutTree:
        """Start the roots, wait for everything that comes of them, and put the tree together."""
        try:
            async with asyncio.TaskGroup() as self.running:
                self.running.create_task(self._start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._close_sessions()
        walks = self._walks()
        if self.turns.dropped:
            for walk in walks:
                self._without_reward(walk)
        mark_shared(walks)
        return assemble(
            self.task,
            self.prompt,
            walks,
            tuple(self.points.values()),
            wasted_tokens=self.wasted_tokens,
            top_ups=len(self.top_ups),
        )

    def _walks(self) -> list[Walk]:
        """All trajectories in the order of the tree."""
        opened = [walk for _, _, walk in sorted(self.branches, key=lambda branch: branch[:2])]
        return [*self.roots, *opened, *self.top_ups]

    async def _close_sessions(self) -> None:
        """Release what tools keep for the trajectories, for branches that never opened too."""
        forks = [child for point in self.points.values() for child in point.children]
        sessions = {id(walk.session): walk.session for walk in (*self._walks(), *forks)}
        for session in sessions.values():
            await session.close()

    def _without_reward(self, walk: Walk) -> None:
        last = walk.pieces[-1] if walk.pieces else None
        if last is not None and last.is_policy and last.finish not in (Finish.WINDOW, Finish.CALL):
            walk.pieces[-1] = replace(last, finish=Finish.ERROR)
        else:
            walk.append(replace(_NOTHING, finish=Finish.ERROR, version=self.engine.version))

    async def _start(self) -> None:
        """Start the roots; where the rule asks for it, the first one alone, to learn how many there should be."""
        initial, rule = self.settings.initial, self.settings.branching
        if isinstance(rule, AepoRule) and rule.monitor:
            self.budget = self._budget(0)
            self.roots = [self._root(0, False)]
            await self._follow(self.roots[0])
            seen = [point.h_tool for point in self.points.values() if not math.isnan(point.h_tool)]
            initial = monitored_initial(rule, self.settings.total, self.roots[0].h_root, seen)
            self.budget = self._budget(self.settings.total - initial)
        fresh = [self._root(number, self.budget.left > 0) for number in range(len(self.roots), initial)]
        self.roots += fresh
        for walk in fresh:
            self.running.create_task(self._follow(walk))
        self._settle()

    def _root(self, number: int, may_branch: bool) -> Walk:
        walk = Walk(f"r{number}", self.prompt.tolist(), self.room, may_branch)
        if may_branch:
            self.budget.enter(walk.path)
        return walk

    async def _follow(self, walk: Walk) -> None:
        """One trajectory from where it stands to its end."""
        try:
            while not self.turns.dropped and await self.turns.respond(walk, await self._segment(walk)):
                if walk.warned:
                    self._claims_no_more(walk)
        except EngineDownError:
            raise
        except EngineError:
            walk.append(replace(_NOTHING, finish=Finish.ERROR, version=self.engine.version))
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
            first = len(self.roots)
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
            walk.h_root, walk.h_root_slack = self._mean(walk.pieces[0], self.entropy.window)
        return finish

    async def _draw(self, walk: Walk, limit: int) -> Finish:
        """One engine call of at most `limit` tokens; WINDOW if it was cut there although room is left."""
        piece = await self._sample(walk, min(limit, walk.room), "sample")
        if piece.finish is Finish.LENGTH and len(piece) < walk.room:
            piece = replace(piece, finish=Finish.WINDOW)
        walk.append(piece)
        return piece.finish

    async def _sample(self, walk: Walk, max_tokens: int, purpose: str) -> Segment:
        dialect = self.agent.dialect
        params = SampleParams(
            max_tokens=max_tokens,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            stop=dialect.stop,
            end_tokens=dialect.end_tokens,
        )
        seed = derive(*self.seed_parts, walk.path, walk.drawn, purpose)
        walk.drawn += 1
        return await self.engine.sample(walk.tokens, params, seed)

    # Deciding

    async def _decide(self, walk: Walk) -> Finish:
        """After a tool result: measure, decide, claim from the budget, and sample the segment to its end."""
        left = walk.room - self.width if self.at == "after_window" else walk.room
        refusal = self.budget.refusal(walk.path, left) if walk.may_branch else "budget spent"
        pausing = not refusal
        if self.lookahead or self.at == "stale_state":
            measured = walk.before_result() if not self.lookahead else await self._peek(walk) if pausing else _NOTHING
            self._record(walk, self._forks(walk, pausing), measured, 0, False, refusal)
            return await self._draw(walk, walk.room)
        forks = self._forks(walk, pausing and self.at != "after_window")
        finish = await self._draw(walk, self.width if pausing else walk.room)
        if self.at == "after_window":
            forks = self._forks(walk, pausing and finish is Finish.WINDOW)
        ended = finish is not Finish.WINDOW and len(walk.open_tokens) <= self.width
        self._record(walk, forks, walk.pieces[-1], 1, ended, refusal)
        return await self._draw(walk, walk.room) if finish is Finish.WINDOW else finish

    async def _peek(self, walk: Walk) -> Segment:
        """k fresh tokens that are thrown away; they are paid for, so they are counted."""
        fresh = await self._sample(walk, min(self.width, walk.room), "lookahead")
        self.wasted_tokens += len(fresh)
        return fresh

    def _forks(self, walk: Walk, possible: bool) -> list[Walk]:
        """The children that would open here."""
        numbers = range(1, self.settings.branches + 1) if possible else ()
        return [walk.fork(child_path(walk.path, walk.depth, number)) for number in numbers]

    def _record(self, walk: Walk, forks: list[Walk], measured: Segment, drawn: int, ended: bool, refusal: str) -> None:
        """Ask the rule and hand its wish to the budget.

        `drawn`: pieces sampled since the tool result; `refusal`: why no child can open here, if so.
        """
        h_tool, h_tool_slack = self._mean(measured, self.width)
        reading = Reading(
            h_root=walk.h_root,
            h_tool=h_tool,
            measured=min(len(measured), self.width),
            ended=ended,
            draw=uniform(*self.seed_parts, walk.path, walk.depth, "branch"),
            h_root_slack=walk.h_root_slack,
            h_tool_slack=h_tool_slack,
            streak=walk.streak,
            result=walk.outcome,
        )
        rule, branches = self.settings.branching, self.settings.branches
        verdict = decide(rule, reading, self.entropy, self.agent.vocab_size, branches)
        streak = walk.streak + 1 if verdict.wanted else 0
        for each in (walk, *forks):
            each.streak = streak
        result = len(walk.pieces) - drawn
        cut = len(walk.pieces) if self.at == "after_window" else result
        note = refusal if verdict.wanted and not forks else ""
        point = Point(walk, walk.tool, walk.depth, h_tool, verdict, result, cut, forks, note=note)
        self.points[walk.path, walk.depth] = point
        self._claim(walk, point)

    def _claim(self, walk: Walk, point: Point) -> None:
        wanted = point.verdict.wanted
        if not walk.may_branch:
            return
        if point.children and wanted:
            self.budget.claim(walk.path, wanted, point.verdict.gain)
        else:
            self.budget.skip(walk.path)
        if walk.calls >= self.settings.max_calls:
            self.budget.leave(walk.path)
        self._settle()

    def _mean(self, piece: Segment, window: int) -> tuple[float, float]:
        """Mean entropy over the window and the half-width of its bracket; NaN where the engine gives none."""
        if not self.has_entropy:
            return math.nan, 0.0
        return window_mean(piece.entropies, window), slack_mean(piece.slacks, window)


def _room(task: Task, prompt_tokens: int, settings: RolloutSettings, capabilities: Capabilities) -> int:
    room = min(settings.max_tokens, capabilities.max_context - prompt_tokens)
    if room < 1:
        raise DataError(
            f"task {task.id}: its prompt of {prompt_tokens} tokens leaves no room in the engine's context of "
            f"{capabilities.max_context}; shorten the prompt, leave the task out, or use a model with a longer context"
        )
    return room
