"""From finished walks to a RolloutTree.

Order of trajectories, and so of leaves: those started from the prompt, then branches by rank (depth, then hash), then
top-ups. It says nothing about time, so equal draws give equal trees. Pieces that no branch divides are joined into
one node (unless the weights changed between them), so a pause leaves no trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from arpo.rollout.walk import Point, Walk, joined
from arpo.task import Task
from arpo.tree import Decision, Finish, RolloutTree, Segment, Source


class _Nodes:
    """Segments placed so far; `after[path][n]` is the node in which piece n of a walk ends (-1 before the first)."""

    def __init__(self, prompt: np.ndarray) -> None:
        self.segments = [Segment(np.asarray(prompt, np.int32), Source.PROMPT)]
        self.after: dict[str, dict[int, int]] = {}

    def place(self, walk: Walk, cuts: set[int]) -> None:
        node = 0 if walk.origin is None else self.after[walk.origin[0].path][walk.origin[1]]
        marks = self.after[walk.path] = {0: node}
        for count, piece in enumerate(walk.pieces, start=1):
            if count > 1 and count - 1 not in cuts and _continues(self.segments[node], piece):
                self.segments[node] = joined(self.segments[node], piece)
            else:
                self.segments.append(replace(piece, parent=node))
                node = len(self.segments) - 1
            marks[count] = node


def _continues(left: Segment, right: Segment) -> bool:
    return left.finish is Finish.WINDOW and right.is_policy and left.version == right.version


def _decision(point: Point, marks: Mapping[int, int]) -> Decision:
    verdict = point.verdict
    return Decision(
        node=marks[point.cut if point.opened else point.result],
        tool=point.tool,
        depth=point.depth,
        h_root=point.walk.h_root,
        h_tool=point.h_tool,
        delta=verdict.delta,
        probability=verdict.probability,
        wanted=verdict.wanted,
        opened=point.opened,
        reason="; ".join(part for part in (verdict.reason, point.note) if part),
        undecided=verdict.undecided,
    )


def _meta(task: Task) -> dict[str, str]:
    """What people want to read beside a tree."""
    gold = {"gold": " | ".join(task.answers)} if task.answers else {}
    return {**task.provenance, "question": task.question, **gold}


def assemble(
    task: Task,
    prompt: np.ndarray,
    walks: Sequence[Walk],
    points: Sequence[Point],
    *,
    wasted_tokens: int,
    top_ups: int,
) -> RolloutTree:
    """The tree of `walks`, parents before children. Decisions stand in order of trajectory, then of depth.

    A decision's node is where its children hang; where none opened, the tool result. The last `top_ups` walks are such.
    """
    cuts: dict[str, set[int]] = {walk.path: set() for walk in walks}
    for point in points:
        if point.opened:
            cuts[point.walk.path].add(point.cut)
    nodes = _Nodes(prompt)
    for walk in walks:
        nodes.place(walk, cuts[walk.path])
    place = {walk.path: index for index, walk in enumerate(walks)}
    ordered = sorted(points, key=lambda point: (place[point.walk.path], point.depth))
    return RolloutTree(
        task_id=task.id,
        segments=tuple(nodes.segments),
        leaves=tuple(nodes.after[walk.path][len(walk.pieces)] for walk in walks),
        decisions=tuple(_decision(point, nodes.after[point.walk.path]) for point in ordered),
        meta=_meta(task),
        wasted_tokens=wasted_tokens,
        top_ups=top_ups,
    )
