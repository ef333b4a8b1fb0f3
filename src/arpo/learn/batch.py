"""From trees and credits to padded rows.

A row is one trajectory, cut after the last token whose prediction enters the loss: what comes later cannot matter.
Rows are sorted by length and packed greedily into micro-batches of a bounded number of padded tokens. Every weight is
turned into the token's final coefficient in the loss *before* the split, so the sum over micro-batches is the
mini-batch's loss whatever their size.

Padding stands on the right. With causal attention no real token sees it, so no attention mask is needed and the fast
attention kernels stay usable.

Shapes: B rows, T padded length, P policy tokens of the micro-batch (all rows', one after the other).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from arpo.credit.base import Credit
from arpo.tree import Path, RolloutTree


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One trajectory as the loss sees it: arrays `[p]`, one entry per weighted policy token.

    `token_T` int64 `[T]`: everything up to the last of them. `position_p`: their places in it (>= 1). `logp_p`: what
    the sampler gave them. `weight_p` > 0.
    """

    task_id: str
    token_T: np.ndarray
    position_p: np.ndarray
    logp_p: np.ndarray
    advantage_p: np.ndarray
    weight_p: np.ndarray

    def __len__(self) -> int:
        """Tokens that a forward pass reads: the last one is only ever predicted."""
        return len(self.token_T) - 1


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One forward pass. `input_BT` int64; the rest `[P]`: `row_P`, `column_P` say which hidden state predicts token
    `label_P`; `coefficient_P` is the token's share of the mini-batch's loss."""

    task_ids: tuple[str, ...]
    """Of each row."""
    input_BT: torch.Tensor
    row_P: torch.Tensor
    column_P: torch.Tensor
    label_P: torch.Tensor
    old_logp_P: torch.Tensor
    advantage_P: torch.Tensor
    coefficient_P: torch.Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "MicroBatch":
        """The same on a device, its real numbers in the precision of the loss."""
        tensors = {name: getattr(self, name) for name in self.__slots__ if name != "task_ids"}
        moved = {k: t.to(device, dtype if t.is_floating_point() else t.dtype) for k, t in tensors.items()}
        return MicroBatch(self.task_ids, **moved)


def rows_of(tree: RolloutTree, credit: Credit) -> list[Row]:
    """The tree's trajectories with a reward and at least one weighted policy token.

    Raises ValueError if a policy token has nothing before it, since nothing then predicts it.
    """
    rows = []
    for leaf, value, weight in zip(tree.leaves, credit.values, credit.weights, strict=True):
        if value is not None and weight is not None:
            row = _row(tree.task_id, tree.path(leaf), value, weight)
            rows += [row] if row is not None else []
    return rows


def _row(task_id: str, path: Path, value: np.ndarray, weight: np.ndarray) -> Row | None:
    place_T = np.searchsorted(np.array(path.nodes), path.node_T)
    weight_T = weight[place_T] * path.policy_T
    position_p = np.flatnonzero(weight_T)
    if len(position_p) == 0:
        return None
    if position_p[0] == 0:
        raise ValueError(f"tree {task_id}: a policy token stands first, nothing predicts it; the prompt is empty")
    return Row(
        task_id,
        path.token_T[: position_p[-1] + 1].astype(np.int64),
        position_p,
        path.logprob_T[position_p],
        value[place_T][position_p],
        weight_T[position_p],
    )


def split(rows: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
    """Indices of rows per micro-batch, longest first, at most `micro_tokens` padded tokens or a single row each."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    start = 0
    while start < len(order):
        count = max(1, micro_tokens // len(rows[order[start]]))
        yield order[start : start + count]
        start += count


def collate(rows: Sequence[Row], coefficients: Sequence[np.ndarray]) -> MicroBatch:
    """Pad rows into one micro-batch. `coefficients`: one array `[p]` per row."""
    input_BT = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for b, row in enumerate(rows):
        input_BT[b, : len(row)] = row.token_T[:-1]
    labels = [row.token_T[row.position_p] for row in rows]
    count_B = [len(row.position_p) for row in rows]
    return MicroBatch(
        tuple(row.task_id for row in rows),
        torch.from_numpy(input_BT),
        torch.from_numpy(np.repeat(np.arange(len(rows)), count_B)),
        torch.from_numpy(np.concatenate([row.position_p for row in rows]) - 1),
        torch.from_numpy(np.concatenate(labels)),
        torch.from_numpy(np.concatenate([row.logp_p for row in rows])),
        torch.from_numpy(np.concatenate([row.advantage_p for row in rows])),
        torch.from_numpy(np.concatenate(coefficients)),
    )
