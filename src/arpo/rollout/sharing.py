"""Equal calls of one group run once.

Branches repeat what their siblings do: a child that samples the call its sibling has made would pay for the same
answer again. Two calls are equal if their whole histories are, token by token; calls of a tool that says it is
`stateless`, and does not read what led to the call, are equal if their arguments are. The first one to come runs;
those that come while it runs wait for it, the later ones get its answer at once. What failed (a time-out, a failure of
the infrastructure) answers those who waited and nobody later.

A call's seed is named by what makes it equal to others, not by who makes it, so sharing changes what is paid for and
nothing else. Which of several equal calls ran depends on time; `mark_shared` therefore gives the cost to the first in
the order of the tree.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from arpo.rollout.walk import Walk
from arpo.seeds import derive
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus
from arpo.tools.sessions import cannot_fork
from arpo.tools.toolbox import ToolBox

Sharing = Literal["off", "histories", "group"]
_LASTING = (ToolStatus.OK, ToolStatus.TOOL_ERROR)
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One execution of a call; the trajectories that it answers hold the same object. `seed`: what it drew from."""

    result: ToolResult
    seed: int


class SharedCalls:
    """The calls of one group. `sharing`: "off", "histories", or "group" (also equal calls of stateless tools)."""

    def __init__(self, toolbox: ToolBox, sharing: Sharing, seed_parts: tuple[str | int, ...]) -> None:
        self._toolbox = toolbox
        self._sharing = sharing
        self._seed_parts = seed_parts
        self._stateless = frozenset(tool.name for tool in toolbox.tools if _by_arguments_alone(tool))
        # A state that lets nothing be replayed has to see every call of its trajectory itself.
        self._alone = frozenset(tool.name for tool in toolbox.tools if cannot_fork(tool))
        self._runs: dict[_Key, asyncio.Future[Run]] = {}

    async def call(
        self, history: Sequence[int], name: str, arguments: Mapping[str, Any], spelling: str, context: ToolContext
    ) -> Run:
        """Run the call, or take the answer of an equal one. `history`: all tokens before the result; `spelling`: the
        arguments, written so that equal ones are equal. The context's seed is set here.
        """
        by_arguments = name in self._stateless and self._sharing == "group"
        key = (name, spelling, "" if by_arguments else _digest(history))
        context = replace(context, seed=derive(*self._seed_parts, *self._seed_key(key, name), "tool"))
        if self._sharing == "off" or name in self._alone:
            return Run(await self._toolbox.call(name, arguments, context), context.seed)
        if key in self._runs:
            return await self._runs[key]
        return await self._first(key, arguments, context)

    def _seed_key(self, key: _Key, name: str) -> Sequence[str]:
        return key[:2] if name in self._stateless else key

    async def _first(self, key: _Key, arguments: Mapping[str, Any], context: ToolContext) -> Run:
        answer = self._runs[key] = asyncio.get_running_loop().create_future()
        try:
            run = Run(await self._toolbox.call(key[0], arguments, context), context.seed)
        except BaseException:
            del self._runs[key]
            answer.cancel()
            raise
        answer.set_result(run)
        if run.result.status not in _LASTING:
            del self._runs[key]
        return run


def _by_arguments_alone(tool: Tool) -> bool:
    return bool(getattr(tool, "stateless", False)) and not getattr(tool, "reads_context", False)


def _digest(history: Sequence[int]) -> str:
    return hashlib.blake2b(np.asarray(history, np.int32).tobytes(), digest_size=16).hexdigest()


def mark_shared(walks: Iterable[Walk]) -> None:
    """Say on every event whether it ran or was answered by an earlier one, earlier in the order of `walks`."""
    met: set[Run] = set()
    for walk in walks:
        for place, run in walk.runs.items():
            piece = walk.pieces[place]
            if piece.event is None:
                raise ValueError(f"piece {place} of {walk.path} holds a run and no event")
            shared = run in met
            met.add(run)
            latency = 0.0 if shared else run.result.latency
            walk.pieces[place] = replace(piece, event=replace(piece.event, shared=shared, latency=latency))
