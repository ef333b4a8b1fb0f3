"""A trajectory while it runs, and a decision point before it is final.

A walk only ever appends, so a branch is a copy of its state together with the number of pieces that the two share. A
piece is what one engine call, tool call or notice added; pieces become the nodes of the tree when the group is complete
(`assemble`), because only then is it known where branches opened.
"""

import math
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from arpo.rollout.branching import ToolOutcome, Verdict
from arpo.tools.sessions import Session
from arpo.tree import Finish, Segment, ToolEvent

if TYPE_CHECKING:
    from arpo.rollout.sharing import Run


def joined(left: Segment, right: Segment) -> Segment:
    """One policy segment from two of its pieces."""
    return replace(
        right,
        parent=left.parent,
        tokens=np.concatenate([left.tokens, right.tokens]),
        logprobs=np.concatenate([left.logprobs, right.logprobs]),
        entropies=np.concatenate([left.entropies, right.entropies]),
        slacks=np.concatenate([left.slacks, right.slacks]),
    )


@dataclass(eq=False, slots=True)
class Walk:
    """One trajectory. `path` names it in seeds; `tokens` is its whole prefix; `room`: response tokens left.

    `may_branch` False: a top-up, or a group without branch budget. `origin`: the walk it left and how many of that
    walk's pieces it shares. `open_tokens`: the unfinished policy segment's tokens, pieces before the branch included.
    `depth`: tool results so far; `calls`: calls charged; `seen`: calls made, as (name, arguments); `outcome`: what the
    last result was like; `streak`: decisions to branch in a row, up to the last one; `session`: the state of its
    tools; `runs`: the execution behind each piece that came of one.
    """

    path: str
    tokens: list[int]
    room: int
    may_branch: bool
    origin: "tuple[Walk, int] | None" = None
    h_root: float = math.nan
    h_root_slack: float = 0.0
    calls: int = 0
    depth: int = 0
    drawn: int = 0
    tool: str = ""
    outcome: ToolOutcome | None = None
    streak: int = 0
    decision_due: bool = False
    warned: bool = False
    seen: set[tuple[str, str]] = field(default_factory=set)
    session: Session = field(default_factory=Session)
    open_tokens: list[int] = field(default_factory=list)
    pieces: list[Segment] = field(default_factory=list)
    runs: "dict[int, Run]" = field(default_factory=dict)

    def append(self, piece: Segment) -> None:
        """Add a piece: to the open segment if the policy sampled it, else closing that."""
        self.pieces.append(piece)
        tokens = piece.tokens.tolist()
        self.tokens.extend(tokens)
        self.room -= len(tokens)
        self.open_tokens = self.open_tokens + tokens if piece.is_policy else []

    def before_result(self) -> Segment:
        """The policy's whole segment that ended in the call whose result came last, its pieces joined.

        For positions whose children open at results: there all of these pieces are the walk's own.
        """
        start = len(self.pieces) - 1
        while start and self.pieces[start - 1].is_policy:
            start -= 1
        return reduce(joined, self.pieces[start:-1])

    def end(self, finish: Finish, event: ToolEvent) -> None:
        """Mark the last policy piece as the end; `event`: the call whose result the trajectory never saw."""
        self.pieces[-1] = replace(self.pieces[-1], finish=finish, event=event)

    def fork(self, path: str) -> "Walk":
        """A new walk that shares everything up to here."""
        return replace(
            self,
            path=path,
            tokens=list(self.tokens),
            origin=(self, len(self.pieces)),
            drawn=0,
            decision_due=False,
            seen=set(self.seen),
            session=self.session.fork(),
            open_tokens=list(self.open_tokens),
            pieces=[],
            runs={},
        )


@dataclass(eq=False, slots=True)
class Point:
    """A decision point of `walk`. `result`, `cut`: pieces up to the tool result and up to where children open."""

    walk: Walk
    tool: str
    depth: int
    h_tool: float
    verdict: Verdict
    result: int
    cut: int
    children: list[Walk]
    opened: int = 0
    note: str = ""
