"""Trees and credits as rows: which tokens of which trajectory enter the loss, and with what.

A row is one trajectory's loss tokens. It does not hold tokens but *places*: a tree's tokens stand one after the other,
segment by segment, and a place is an index among them. Two trajectories that share a token name the same place, which
is all that packing needs to compute it once.

Shapes: N tokens of a tree, S nodes, p loss tokens of one trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from arpo.credit.base import Credit
from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True, eq=False)
class FlatTree:
    """A tree's tokens, each once: `token_N` int64, `logp_N` float32 as sampled (0 where nothing was).

    Node s holds the places `start_S[s]` to `start_S[s] + size_S[s]`; `previous_N` is the place before each on its path,
    -1 for the first of all.
    """

    tree: RolloutTree
    token_N: np.ndarray
    logp_N: np.ndarray
    start_S: np.ndarray
    size_S: np.ndarray
    previous_N: np.ndarray

    @property
    def parents(self) -> list[int]:
        return [segment.parent for segment in self.tree.segments]


def flatten(tree: RolloutTree) -> FlatTree:
    """Raises ValueError for a tree in which a sampled token has nothing before it, since nothing then predicts it."""
    size_S = np.array([len(s) for s in tree.segments], np.int64)
    start_S = np.cumsum(size_S) - size_S
    total = int(size_S.sum())
    token_N, logp_N = np.empty(total, np.int64), np.zeros(total, np.float32)
    previous_N = np.arange(-1, total - 1)
    last_S = np.empty(len(size_S), np.int64)  # the last place on the path down to and including each node
    for node, segment in enumerate(tree.segments):
        start, size = int(start_S[node]), len(segment)
        token_N[start : start + size] = segment.tokens
        if segment.is_policy:
            logp_N[start : start + size] = segment.logprobs
        above = int(last_S[segment.parent]) if node else -1
        if segment.is_policy and size and above < 0:
            raise ValueError(f"tree {tree.task_id}: a sampled token stands first, nothing predicts it (empty prompt)")
        if size:
            previous_N[start] = above
        last_S[node] = start + size - 1 if size else above
    return FlatTree(tree, token_N, logp_N, start_S, size_S, previous_N)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One trajectory's loss tokens: arrays `[p]`, float64. `tree`: index in the mini-batch; `weight_p` > 0."""

    tree: int
    leaf: int
    place_p: np.ndarray
    advantage_p: np.ndarray
    weight_p: np.ndarray

    def __len__(self) -> int:
        return len(self.place_p)

    def scaled(self, factor_p: np.ndarray) -> "Row":
        """The same with advantages multiplied by positive factors."""
        return replace(self, advantage_p=self.advantage_p * factor_p)


def rows_of(index: int, flat: FlatTree, credit: Credit) -> list[Row]:
    """The tree's trajectories that have a reward and at least one weighted token."""
    rows = []
    for leaf, value, weight in zip(flat.tree.leaves, credit.values, credit.weights, strict=True):
        if value is not None and weight is not None:
            rows += _row(index, flat, leaf, value, weight, credit.per_token)
    return rows


def _row(index: int, flat: FlatTree, leaf: int, value: np.ndarray, weight: np.ndarray, per_token: bool) -> list[Row]:
    path = flat.tree.ancestry(leaf)
    size = flat.size_S[list(path)]
    sampled = np.array([flat.tree.segments[node].is_policy for node in path])
    kept_T = np.repeat((weight != 0) & sampled, size)
    if not kept_T.any():
        return []
    place_T = np.concatenate([np.arange(flat.start_S[n], flat.start_S[n] + flat.size_S[n]) for n in path])
    value_T = value if per_token else np.repeat(value, size)
    return [Row(index, leaf, place_T[kept_T], value_T[kept_T], np.repeat(weight, size)[kept_T])]


def all_rows(index: int, flat: FlatTree) -> list[Row]:
    """Every sampled token of every trajectory, at weight 1 and advantage 0: for scoring without a loss."""
    nodes = [tuple(flat.tree.ancestry(leaf)) for leaf in flat.tree.leaves]
    ones = [np.array([float(flat.tree.segments[n].is_policy) for n in path]) for path in nodes]
    zeros = tuple(np.zeros(len(path)) for path in nodes)
    return rows_of(index, flat, Credit(zeros, tuple(ones)))


def per_segment(flat: FlatTree, value_N: np.ndarray) -> tuple[np.ndarray, ...]:
    """Values of a tree's tokens as one array per segment, empty where the policy sampled nothing."""
    pieces: Sequence[np.ndarray] = np.split(value_N, flat.start_S[1:])
    return tuple(p if s.is_policy else p[:0] for p, s in zip(pieces, flat.tree.segments, strict=True))


def read_tokens(flats: Sequence[FlatTree], rows: Sequence[Row]) -> int:
    """Tokens of the rows' trajectories, one by one: what a learner reads that shares no prefix."""
    return sum(int(flats[row.tree].size_S[list(flats[row.tree].tree.ancestry(row.leaf))].sum()) for row in rows)
