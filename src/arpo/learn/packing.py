"""From rows to forward passes in which every shared token stands once.

Trajectories of one tree that go through the same pass form a *part*: the union of their paths, laid on a line
(`arpo.learn.layout`), cut after the last token that predicts anything. A pack is several parts, up to a budget of
tokens. A tree that exceeds it is divided where that costs least: at its roots first, then along its branches, and
every part computes the tokens above it again. A trajectory is never cut, so whatever a loss asks of a whole trajectory
is in one place; and since the loss is a sum over trajectories with factors fixed beforehand, its gradient is the same
whatever the budget.

What a pack predicts are *labels*, each sampled token of the tree once. Several labels may share the state that predicts
them: the first tokens of the branches that open there. Copies (a label in a trajectory) are an index and numbers.

Two more forms serve models that cannot attend to a tree, and comparison: `sequence` lays every trajectory out by
itself, back to back; `padded` makes each a row of a rectangle.

Shapes: B x T the input (B = 1 unless padded), L = B T its tokens, S states that predict, U labels, P copies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch

from arpo.learn.layout import Geometry, chain, join, place
from arpo.learn.rows import FlatTree, Row

Packing = Literal["tree", "sequence", "padded"]


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One forward pass and what it predicts. Tensors: `input_BT`, `position_BT` int64; `state_S`: places in the
    flattened input; `head_U` index of each label's state, ascending; `label_U` its token; `tree_U` its tree; `place_U`
    its place there; copies: `index_P` into the labels, `row_P` trajectories of this pack, from 0.
    """

    geometry: Geometry | None
    """None: plain causal rows."""
    rows: int
    input_BT: torch.Tensor
    position_BT: torch.Tensor
    state_S: torch.Tensor
    head_U: torch.Tensor
    label_U: torch.Tensor
    tree_U: torch.Tensor
    place_U: torch.Tensor
    old_logp_U: torch.Tensor
    index_P: torch.Tensor
    row_P: torch.Tensor
    advantage_P: torch.Tensor
    coefficient_P: torch.Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "Pack":
        """The same on a device, its real numbers in the precision of the loss."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("geometry", "rows")}
        moved = {k: t.to(device, dtype if t.is_floating_point() else t.dtype) for k, t in tensors.items()}
        return replace(self, **moved)

    def silent(self) -> "Pack":
        """The same pass with no weight in the loss."""
        return replace(self, coefficient_P=torch.zeros_like(self.coefficient_P))

    @property
    def tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.input_BT.numel()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some trajectories of one tree on a line. `state_U` counts from the part's first token."""

    token_L: np.ndarray
    position_L: np.ndarray
    geometry: Geometry
    state_U: np.ndarray
    label_U: np.ndarray
    tree_U: np.ndarray
    place_U: np.ndarray
    old_logp_U: np.ndarray
    index_P: np.ndarray
    row_P: np.ndarray
    advantage_P: np.ndarray
    coefficient_P: np.ndarray
    rows: int


def packs(
    flats: Sequence[FlatTree],
    rows: Sequence[Row],
    coefficients: Sequence[np.ndarray],
    old_logp: Sequence[np.ndarray],
    *,
    budget: int,
    packing: Packing,
    multiple: int = 1,
) -> list[Pack]:
    """All forward passes of a mini-batch, the largest first.

    `coefficients`: per row `[p]`. `old_logp`: per tree `[N]`. `budget`: tokens of a pass; a single trajectory that is
    longer has a pass of its own. `multiple`: a line is filled up with unused tokens to a multiple of this.
    """
    budget = max(budget - budget % multiple, 1)
    chosen = [(rows[i], coefficients[i]) for i in range(len(rows))]
    members = _members(flats, rows, budget, packing)
    parts = [_part(flats[rows[own[0]].tree], [chosen[i] for i in own], old_logp[rows[own[0]].tree]) for own in members]
    if packing == "padded":
        return [_padded([parts[i] for i in own]) for own in _rectangles(parts, budget)]
    return [_line([parts[i] for i in own], multiple) for own in _bins([len(p.token_L) for p in parts], budget)]


def _members(flats: Sequence[FlatTree], rows: Sequence[Row], budget: int, packing: Packing) -> list[list[int]]:
    """Which rows go into each part."""
    if packing != "tree":
        return [[i] for i in range(len(rows))]
    own: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        own.setdefault(row.tree, []).append(i)
    return [part for tree, mine in own.items() for part in _divide(flats[tree], rows, mine, budget)]


def _divide(flat: FlatTree, rows: Sequence[Row], mine: Sequence[int], budget: int) -> list[list[int]]:
    """A tree's rows, divided so that each part fits the budget if it can."""
    parents, size_S = flat.parents, needed(flat, [rows[i] for i in mine])
    above_S = np.zeros_like(size_S)
    at: dict[int, list[int]] = {}
    for i in mine:
        at.setdefault(rows[i].leaf, []).append(i)
    kids: dict[int, list[int]] = {}
    wanted = {node for i in mine for node in flat.tree.ancestry(rows[i].leaf)}
    for node in range(len(parents) - 1, 0, -1):
        if node in wanted:
            kids.setdefault(parents[node], []).insert(0, node)
    for node in range(1, len(parents)):
        above_S[node] = above_S[parents[node]] + size_S[parents[node]]
    collected: dict[int, list[tuple[int, list[int]]]] = {}  # per node: (tokens below it, rows) of each part
    for node in sorted(wanted, reverse=True):
        parts = [part for kid in kids.get(node, ()) for part in collected.pop(kid)]
        if node in at:
            parts = [(0, at[node])]
        room = budget - int(above_S[node] + size_S[node])
        collected[node] = [(tokens + int(size_S[node]), own) for tokens, own in _merged(parts, room)]
    return [own for _, own in collected[0]]


def _merged(parts: Sequence[tuple[int, list[int]]], room: int) -> Iterator[tuple[int, list[int]]]:
    """Neighbours joined while they fit."""
    held: tuple[int, list[int]] | None = None
    for tokens, own in parts:
        if held is not None and held[0] + tokens <= room:
            held = (held[0] + tokens, held[1] + own)
        else:
            if held is not None:
                yield held
            held = (tokens, own)
    if held is not None:
        yield held


def needed(flat: FlatTree, rows: Sequence[Row]) -> np.ndarray:
    """Tokens of each node that the rows' labels are predicted from, int64 `[S]`: all but tails that predict nothing."""
    size_S = np.zeros(len(flat.size_S), np.int64)
    state = flat.previous_N[np.unique(np.concatenate([row.place_p for row in rows]))]
    node = np.searchsorted(flat.start_S, state, side="right") - 1
    np.maximum.at(size_S, node, state - flat.start_S[node] + 1)
    reached_S = size_S > 0
    parents = flat.parents
    for child in range(len(parents) - 1, 0, -1):
        if reached_S[child]:
            reached_S[parents[child]] = True
            size_S[parents[child]] = flat.size_S[parents[child]]
    return size_S


def _part(flat: FlatTree, chosen: Sequence[tuple[Row, np.ndarray]], old_logp_N: np.ndarray) -> _Part:
    rows = [row for row, _ in chosen]
    size_S = needed(flat, rows)
    placed = place(flat.parents, size_S)
    nodes = np.argsort(np.where(size_S > 0, placed.start_S, len(placed.geometry)), kind="stable")[: (size_S > 0).sum()]
    source_L = np.concatenate([np.arange(flat.start_S[n], flat.start_S[n] + size_S[n]) for n in nodes])
    position_L = np.concatenate([np.arange(placed.depth_S[n], placed.depth_S[n] + size_S[n]) for n in nodes])
    line_N = np.full(len(flat.token_N), -1)
    line_N[source_L] = np.arange(len(source_L))
    count_R = [len(row) for row in rows]
    place_U, index_P = np.unique(np.concatenate([row.place_p for row in rows]), return_inverse=True)
    return _Part(
        token_L=flat.token_N[source_L],
        position_L=position_L,
        geometry=placed.geometry,
        state_U=line_N[flat.previous_N[place_U]],
        label_U=flat.token_N[place_U],
        tree_U=np.full(len(place_U), rows[0].tree),
        place_U=place_U,
        old_logp_U=old_logp_N[place_U].astype(np.float64),
        index_P=index_P,
        row_P=np.repeat(np.arange(len(rows)), count_R),
        advantage_P=np.concatenate([row.advantage_p for row in rows]),
        coefficient_P=np.concatenate([coefficient for _, coefficient in chosen]),
        rows=len(rows),
    )


def _bins(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """First fit, the largest first."""
    room: list[int] = []
    own: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fits = next((b for b, left in enumerate(room) if left >= sizes[i]), None)
        if fits is None:
            room.append(budget)
            own.append([])
            fits = len(own) - 1
        room[fits] -= sizes[i]
        own[fits].append(i)
    return own


def _rectangles(parts: Sequence[_Part], budget: int) -> Iterator[list[int]]:
    """Rows of like length together, padding counted."""
    order = sorted(range(len(parts)), key=lambda i: -len(parts[i].token_L))
    start = 0
    while start < len(order):
        count = max(1, budget // len(parts[order[start]].token_L))
        yield order[start : start + count]
        start += count


def _line(parts: Sequence[_Part], multiple: int) -> Pack:
    sizes = [len(part.token_L) for part in parts]
    fill = -sum(sizes) % multiple
    geometries = [part.geometry for part in parts] + ([replace(chain(fill), depth=0)] if fill else [])
    return _pack(
        parts,
        join(geometries),
        np.concatenate([part.token_L for part in parts] + [np.zeros(fill, np.int64)])[None],
        np.concatenate([part.position_L for part in parts] + [np.arange(fill)])[None],
        np.cumsum(sizes) - sizes,
    )


def _padded(parts: Sequence[_Part]) -> Pack:
    """Padding stands on the right, where under causal attention no real token sees it: no mask is needed."""
    width = max(len(part.token_L) for part in parts)
    input_BT = np.zeros((len(parts), width), np.int64)
    for b, part in enumerate(parts):
        input_BT[b, : len(part.token_L)] = part.token_L
    position_BT = np.tile(np.arange(width), (len(parts), 1))
    return _pack(parts, None, input_BT, position_BT, np.arange(len(parts)) * width)


def _pack(
    parts: Sequence[_Part],
    geometry: Geometry | None,
    input_BT: np.ndarray,
    position_BT: np.ndarray,
    base: Sequence[int] | np.ndarray,
) -> Pack:
    """Join what the parts predict; labels in the order of their states, so that the head can work in slices."""
    counts = [len(part.place_U) for part in parts]
    state_U = np.concatenate([part.state_U + base[i] for i, part in enumerate(parts)])
    order_U = np.argsort(state_U, kind="stable")
    rank_U = np.empty_like(order_U)
    rank_U[order_U] = np.arange(len(order_U))
    state_S, head_U = np.unique(state_U[order_U], return_inverse=True)
    label_base, row_base = np.cumsum(counts) - counts, np.cumsum([p.rows for p in parts]) - [p.rows for p in parts]

    def labels(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(part, name) for part in parts])[order_U])

    def copies(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(part, name) for part in parts]))

    return Pack(
        geometry=geometry,
        rows=sum(part.rows for part in parts),
        input_BT=torch.from_numpy(input_BT),
        position_BT=torch.from_numpy(position_BT),
        state_S=torch.from_numpy(state_S),
        head_U=torch.from_numpy(head_U),
        label_U=labels("label_U"),
        tree_U=labels("tree_U"),
        place_U=labels("place_U"),
        old_logp_U=labels("old_logp_U"),
        index_P=torch.from_numpy(rank_U[np.concatenate([p.index_P + label_base[i] for i, p in enumerate(parts)])]),
        row_P=torch.from_numpy(np.concatenate([p.row_P + row_base[i] for i, p in enumerate(parts)])),
        advantage_P=copies("advantage_P"),
        coefficient_P=copies("coefficient_P"),
    )
