"""A sampling engine in virtual time: continuous batching, chunked prefill, a prefix cache with room for so much.

One replica steps while it has sequences. A step samples one token for each sequence that is ready and computes up to
`chunk` tokens of the prefixes of others; how long it takes is `phases.Replica.step`. Between two arrivals, ends and
shortages nothing changes but the lengths, so such steps are taken together, at the mean of the first and the last
one's time; whoever comes meanwhile is let in at the next boundary of a step. When growing sequences run out of room,
idle prefixes go, then the sequence that started last: it waits at the front and is computed again.

The prompts are dealt out to the replicas in turn, and what follows a prompt stays where it is cached.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities, SampleParams
from arpo.engine.stats import EngineStats
from arpo.errors import ConfigError
from arpo.plan.phases import Replica
from arpo.plan.simulation.cache import Block, Cache
from arpo.plan.simulation.policy import FILL, FIRST_PROMPT, Script
from arpo.seeds import uniform
from arpo.tree import Finish, Segment, Source


class Row:
    """A request: `size` tokens to sample behind `block`; `done` of them are. `end`: the step in which it is over;
    `asked`: when it came; `queued`: since when it waits.
    """

    __slots__ = ("asked", "block", "context", "done", "end", "future", "joined", "prefill", "queued", "size")

    def __init__(self, block: Block, size: int, asked: float, future: "asyncio.Future[None]") -> None:
        self.block, self.size, self.future = block, size, future
        self.asked = self.queued = asked
        self.done = self.prefill = self.end = self.joined = self.context = 0

    def __lt__(self, other: "Row") -> bool:
        return self.end < other.end


class Server:
    """One replica. `stats` as of any engine. `row_seconds`: sequences under way, integrated over time; `waited`:
    seconds that requests waited, all together; `preempted`: sequences that were put back.
    """

    def __init__(self, model: Replica) -> None:
        self.model, self.cache = model, Cache(model.room)
        self.waiting: deque[Row] = deque()
        self.filling: deque[Row] = deque()
        self.rows: list[Row] = []
        self.cached = self.counter = self.preempted = self.starts = 0
        self.row_seconds = self.waited = 0.0
        self.stats = EngineStats()
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._each = 0.0
        self._steps = 0

    def submit(self, row: Row) -> None:
        """Queue a request; the replica wakes up, or ends its steps at the next boundary."""
        self.waiting.append(row)
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_soon(self._go)  # type: ignore[assignment]
        elif self._steps > 1 and len(self.rows) < self.model.rows:
            passed = math.floor((loop.time() - self._began) / self._each) + 1
            if passed < self._steps:
                self._steps = passed
                self._timer.cancel()
                self._timer = loop.call_at(self._began + passed * self._each, self._done)

    def _go(self) -> None:
        """Start the next steps, if there is work."""
        loop = asyncio.get_running_loop()
        self._admit(loop.time())
        chunk = min(sum(row.prefill for row in self.filling), self.model.chunk)
        if not self.rows and not self.filling:
            self._timer, self._steps = None, 0
            self._refuse()
            return
        self._steps = 1 if self.filling else self._leap()
        self._each = self._seconds(self._steps, chunk) / self._steps
        self._began = loop.time()
        self._timer = loop.call_at(self._began + self._steps * self._each, self._done)

    def _refuse(self) -> None:
        """Whoever still waits for an engine that does nothing will never fit."""
        for row in self.waiting:
            size, room = row.block.length + row.done + 1, self.cache.capacity
            row.future.set_exception(
                ConfigError(f"a trajectory takes more keys and values than fit: {size:,} tokens, room for {room:,}")
            )
        self.waiting.clear()

    def _admit(self, now: float) -> None:
        while self.waiting and len(self.rows) + len(self.filling) < self.model.rows:
            row = self.waiting[0]
            growing = len(self.rows) + len(self.filling) + 1
            missing = self.cache.hold(row.block, row.done + growing)
            if missing is None:
                return
            self.waiting.popleft()
            self.cache.used += row.done
            row.prefill, row.context = missing + row.done, row.block.length + row.done
            self.starts += 1
            row.joined = self.starts
            self.waited += now - row.queued
            self.stats.prefilled_tokens += row.prefill
            self.stats.reused_tokens += row.context - row.prefill
            self.filling.append(row) if row.prefill else self._ready(row)

    def _ready(self, row: Row) -> None:
        row.end = self.counter + row.size - row.done
        heapq.heappush(self.rows, row)
        self.cached += row.context

    def _leap(self) -> int:
        """Steps until somebody is done or room may run out."""
        free = self.cache.capacity - self.cache.used + self.cache.idle
        return max(min(self.rows[0].end - self.counter, free // len(self.rows)), 1)

    def _seconds(self, steps: int, chunk: int) -> float:
        first = self.model.step(len(self.rows), self.cached, chunk)
        if steps == 1:
            return first
        last = self.model.step(len(self.rows), self.cached + (steps - 1) * len(self.rows), chunk)
        return steps * (first + last) / 2

    def _done(self) -> None:
        """The steps are over: everybody has grown, some are ready, some done."""
        steps, rows = self._steps, len(self.rows)
        self._count(steps, rows)
        grown = steps * rows
        self._grow(grown)
        self.counter += steps
        self.cached += steps * len(self.rows)
        self._fill()
        while self.rows and self.rows[0].end <= self.counter:
            self._finish(heapq.heappop(self.rows))
        self._go()

    def _grow(self, tokens: int) -> None:
        while not self.cache.make_room(tokens) and self.rows:
            last = max(self.rows, key=lambda row: row.joined)
            tokens -= self._steps
            self._preempt(last)
        self.cache.used += tokens

    def _preempt(self, row: Row) -> None:
        """Back to the front of the queue; what it sampled in these steps is lost."""
        self.rows.remove(row)
        heapq.heapify(self.rows)
        sampled = row.size - (row.end - self.counter)
        self.cached -= row.block.length + sampled
        self.cache.used -= sampled
        self.cache.release(row.block)
        row.done, row.queued = sampled, asyncio.get_running_loop().time()
        self.preempted += 1
        self.waiting.appendleft(row)

    def _fill(self) -> None:
        """Prefixes that were computed in this step; their first token was sampled with it."""
        budget = self.model.chunk
        while self.filling and budget:
            row = self.filling[0]
            part = min(row.prefill, budget)
            row.prefill -= part
            budget -= part
            if row.prefill:
                return
            self.filling.popleft()
            row.done += 1
            row.context += 1
            self.cache.used += 1
            self.stats.sampled_tokens += 1
            self._ready(row)

    def _finish(self, row: Row) -> None:
        self.cached -= row.block.length + row.size
        block = Block(row.size, row.block)
        self.cache.add(block)
        self.cache.release(row.block)
        row.block = block
        row.future.set_result(None)

    def _count(self, steps: int, rows: int) -> None:
        seconds = steps * self._each
        self.stats.seconds += seconds
        self.stats.steps += steps
        self.stats.sampled_tokens += steps * rows
        self.row_seconds += seconds * (rows + len(self.filling))


class SimulatedEngine:
    """All replicas as one engine. Implements `arpo.engine.base.Engine`. `certain`: how often entropy rises after a
    result; `ended`: when answers were given, and how long replicas and tools had been busy by then; `in_system`:
    seconds that requests took, waiting included.
    """

    version = 0

    def __init__(
        self,
        servers: Sequence[Server],
        script: Script,
        longest: int,
        certain: float = 1.0,
        tools: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.servers, self.script, self.certain, self._tools = list(servers), script, certain, tools
        self.capabilities = Capabilities("exact", prefix_reuse=True, weight_update=True, max_context=longest)
        self.ended: list[tuple[float, float, float]] = []
        self.in_system = 0.0
        self._blocks: dict[tuple[int, int], Block] = {}

    @property
    def stats(self) -> EngineStats:
        """The sums over all replicas."""
        parts = [server.stats for server in self.servers]
        names = ("calls", "sampled_tokens", "prefilled_tokens", "reused_tokens", "steps")
        return EngineStats(
            **{name: sum(getattr(part, name) for part in parts) for name in names},
            seconds=sum(part.seconds for part in parts),
        )

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        """The script's next piece, when the replica has sampled it."""
        loop = asyncio.get_running_loop()
        number, behind = _place(tokens)
        group = self.group(tokens)
        before = self.script.pieces.get(number)
        piece = self.script.draw(before, behind > 0, group, params.max_tokens, seed)
        size = piece.so_far - (0 if before is None or behind else before.so_far)
        row = Row(self._block(number, behind, len(tokens)), size, loop.time(), loop.create_future())
        server = self.servers[group % len(self.servers)]
        server.stats.calls += 1
        server.submit(row)
        await row.future
        self.in_system += loop.time() - row.asked
        if piece.finish is Finish.STOP:
            self.ended.append((loop.time(), self.stats.seconds, self._tools()))
        mark = self.script.keep(piece)
        self._blocks[mark, 0] = row.block
        sampled = np.full(size, FILL, np.int32)
        sampled[-1] = mark
        entropy = np.full(size, self._entropy(before is None, seed), np.float32)
        zeros = np.zeros(size, np.float32)
        return Segment(sampled, Source.POLICY, logprobs=zeros, entropies=entropy, finish=piece.finish, version=0)

    def group(self, tokens: Sequence[int]) -> int:
        """The number of the prompt."""
        return tokens[self.script.mean.prompt - 1] - FIRST_PROMPT

    def _entropy(self, first: bool, seed: int) -> float:
        """1 nat behind the prompt; behind a result more or less."""
        return 1.0 if first else 1.5 if uniform(seed, "entropy") < self.certain else 0.5

    def _block(self, number: int, behind: int, length: int) -> Block:
        found = self._blocks.get((number, behind))
        if found is None:
            parent = self._blocks.get((number, 0))
            found = self._blocks[number, behind] = Block(length if parent is None else behind, parent)
        return found

    async def publish(self, weights: Any, version: int) -> None:
        """Nothing here has weights."""

    def save(self, folder: Path) -> None:
        """Nothing here is worth keeping."""

    def load(self, folder: Path) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is held."""


def _place(tokens: Sequence[int]) -> tuple[int, int]:
    """The last number in the prefix, and the tokens behind it."""
    behind = 0
    while tokens[-1 - behind] == FILL:
        behind += 1
    return tokens[-1 - behind], behind
