"""The geometry of a forest laid out on one line: who sees whom, in a few numbers.

Nodes stand in depth-first order, the largest child first. Then every subtree is an interval, and the ancestor mask is
one number per token: query q sees key k iff k <= q < end[k], with end[k] the end of k's subtree. An L x L mask need
never exist. The same order cuts the mask into plain rectangles: a *chain* (a node, its largest child, that child's
largest child, ... down to a leaf) is contiguous and causal in itself, and at each branching node all that branches off
its chain sees the chain up to there in full. A tree of M leaves is M causal blocks and at most M - 1 full ones.

Shapes: L tokens on the line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Span = tuple[int, int]
"""[start, stop) on the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """What attention needs to know of one line of trees.

    `end_L` int64: q sees k iff k <= q < end[k]. `causal`: chains, which cover the line without overlap. `full`: pairs
    (queries, keys) that see each other wholly. `spans`: stretches that share nothing with each other (trees).
    `depth`: the longest path in tokens.
    """

    end_L: np.ndarray
    causal: tuple[Span, ...]
    full: tuple[tuple[Span, Span], ...]
    spans: tuple[Span, ...]
    depth: int

    def __len__(self) -> int:
        return len(self.end_L)

    @property
    def pairs(self) -> int:
        """Query-key pairs that the mask lets through."""
        own = sum((stop - start) * (stop - start + 1) // 2 for start, stop in self.causal)
        return own + sum((q[1] - q[0]) * (k[1] - k[0]) for q, k in self.full)

    def mask(self, start: int, stop: int) -> np.ndarray:
        """The ancestor mask of one stretch, bool `[stop - start, stop - start]`, True where query (row) sees key."""
        place = np.arange(start, stop)
        return (place[None, :] <= place[:, None]) & (place[:, None] < self.end_L[None, start:stop])


def join(parts: Sequence[Geometry]) -> Geometry:
    """Several lines one after the other; they see nothing of each other."""
    ends, causal, full, spans, base = [], [], [], [], 0
    for part in parts:
        ends.append(part.end_L + base)
        causal += [_moved(span, base) for span in part.causal]
        full += [(_moved(q, base), _moved(k, base)) for q, k in part.full]
        spans += [_moved(span, base) for span in part.spans]
        base += len(part)
    return Geometry(np.concatenate(ends), tuple(causal), tuple(full), tuple(spans), max(p.depth for p in parts))


def chain(length: int) -> Geometry:
    """A single sequence: plain causal attention."""
    span = (0, length)
    return Geometry(np.full(length, length, np.int64), (span,), (), (span,), length)


def _moved(span: Span, base: int) -> Span:
    return span[0] + base, span[1] + base


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where each node of one tree went: `start_S` its first token on the line, `depth_S` tokens above it (both
    meaningless for nodes of size 0 without a placed descendant)."""

    start_S: np.ndarray
    depth_S: np.ndarray
    geometry: Geometry


@dataclass(slots=True)
class _Walk:
    """Depth-first placement of one tree."""

    size_S: np.ndarray
    start_S: np.ndarray
    depth_S: np.ndarray
    chain_S: np.ndarray
    """Where the chain of each node begins."""
    order: list[int] = field(default_factory=list)


def place(parent_S: Sequence[int], size_S: np.ndarray) -> Placement:
    """Lay a tree on a line. `parent_S[0]` is -1, parents come first; `size_S`: tokens of each node that are computed.

    A node may have size 0; nothing else is assumed. Raises ValueError if no node has a token.
    """
    if not size_S.sum():
        raise ValueError("a tree without a token cannot be laid out")
    below_S = _below(parent_S, size_S)
    kids = _kids(parent_S, below_S)
    start_S, depth_S, chain_S = np.zeros((3, len(size_S)), np.int64)
    walk = _Walk(size_S, start_S, depth_S, chain_S)
    _descend(walk, kids)
    end_S = walk.start_S + below_S
    causal = _chains(walk)
    full = tuple(_branches(walk, kids, end_S))
    return Placement(walk.start_S, walk.depth_S, _geometry(walk, end_S, causal, full))


def _below(parent_S: Sequence[int], size_S: np.ndarray) -> np.ndarray:
    """Tokens in the subtree of each node."""
    below_S = size_S.astype(np.int64)
    for node in range(len(size_S) - 1, 0, -1):
        below_S[parent_S[node]] += below_S[node]
    return below_S


def _kids(parent_S: Sequence[int], below_S: np.ndarray) -> list[list[int]]:
    """Children that hold tokens, the largest subtree first."""
    kids: list[list[int]] = [[] for _ in parent_S]
    for node in range(1, len(parent_S)):
        if below_S[node]:
            kids[parent_S[node]].append(node)
    for own in kids:
        own.sort(key=lambda kid: -below_S[kid])
    return kids


def _descend(walk: _Walk, kids: list[list[int]]) -> None:
    stack, cursor = [(0, 0, True)], 0
    while stack:
        node, depth, fresh = stack.pop()
        walk.start_S[node], walk.depth_S[node] = cursor, depth
        walk.chain_S[node] = cursor if fresh else walk.chain_S[walk.order[-1]]
        walk.order.append(node)
        cursor += int(walk.size_S[node])
        below = depth + int(walk.size_S[node])
        stack += [(kid, below, rank > 0) for rank, kid in reversed(list(enumerate(kids[node])))]


def _chains(walk: _Walk) -> tuple[Span, ...]:
    starts = sorted({int(walk.chain_S[node]) for node in walk.order})
    stops = [*starts[1:], int(walk.size_S.sum())]
    return tuple(zip(starts, stops, strict=True))


def _branches(walk: _Walk, kids: list[list[int]], end_S: np.ndarray) -> list[tuple[Span, Span]]:
    """At every branching node: all that leaves its chain there sees the chain up to there."""
    found = []
    for node in walk.order:
        if len(kids[node]) > 1:
            queries = (int(end_S[kids[node][0]]), int(end_S[node]))
            keys = (int(walk.chain_S[node]), int(walk.start_S[node] + walk.size_S[node]))
            if keys[0] < keys[1]:
                found.append((queries, keys))
    return found


def _geometry(
    walk: _Walk, end_S: np.ndarray, causal: tuple[Span, ...], full: tuple[tuple[Span, Span], ...]
) -> Geometry:
    order = np.array(walk.order)
    end_L = np.repeat(end_S[order], walk.size_S[order])
    depth = int((walk.depth_S[order] + walk.size_S[order]).max())
    return Geometry(end_L.astype(np.int64), causal, full, ((0, len(end_L)),), depth)
