"""Attention of one new token per row over its pages: each page read once for all its readers, the parts then joined.

Softmax over disjoint sets of keys joins from each set's maximum, sum of exponentials and weighted sum of values (the
identity behind online softmax: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"). Plain matrix
products are used throughout: for one query per page they beat the CPU's blocked attention kernel.

Shapes: B rows, H key/value heads, G query heads per key/value head, D head size, N parts (pages) per row, R readers per
page, C tokens per page, n pages of a chunk; U places of all chunks.
"""

import torch

from arpo.engine.paging import Chunk, Plan


def attend(q_BHGD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan, scale: float) -> torch.Tensor:
    """`[B, H, G, D]`. `keys`, `values`: a layer's pages `[P, H, C, D]`. Scores are `scale` times the products."""
    q_BHGD = q_BHGD * scale
    rows, count = plan.part_BN.shape
    parts = [_chunk(q_BHGD, keys, values, chunk, plan.bias_PC) for chunk in plan.chunks]
    mixed_U, total_U, top_U = (_stacked(part, fill) for part, fill in zip(zip(*parts, strict=True), _FILL, strict=True))
    part = plan.part_BN.flatten()
    mixed, total, top = (
        of_U.index_select(0, part).view(rows, count, *of_U.shape[1:]) for of_U in (mixed_U, total_U, top_U)
    )
    weight = (top - top.amax(1, keepdim=True)).exp_()
    return (mixed.mul_(weight).sum(1) / total.mul_(weight).sum(1)).to(q_BHGD.dtype)


_FILL = (0.0, 0.0, -torch.inf)


def _stacked(parts: tuple[torch.Tensor, ...], fill: float) -> torch.Tensor:
    """The places of all chunks, and one more that stands for nothing: `[U + 1, H, G, D or 1]`."""
    return torch.cat([*parts, parts[0].new_full((1, *parts[0].shape[1:]), fill)])


def _chunk(
    q_BHGD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: Chunk, bias_PC: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weighted sums of values `[n*R, H, G, D]`, sums of weights and maxima `[n*R, H, G, 1]`."""
    groups = q_BHGD.shape[2]
    pages, readers = slice(chunk.start, chunk.stop), chunk.readers
    q = _side_by_side(q_BHGD.index_select(0, chunk.row_U), readers)
    scores = torch.matmul(q, keys[pages].transpose(-1, -2)).to(_wide(q)).add_(bias_PC[pages, None, None])
    top = scores.amax(-1, keepdim=True)
    scores.sub_(top).exp_()
    parts = torch.matmul(scores.to(q.dtype), values[pages]).to(scores.dtype), scores.sum(-1, keepdim=True), top
    if readers == 1:
        return parts
    a, b, c = (x.unflatten(2, (readers, groups)).transpose(1, 2).flatten(0, 1) for x in parts)
    return a, b, c


def _side_by_side(q_UHGD: torch.Tensor, readers: int) -> torch.Tensor:
    """The queries of a page's readers as the rows of one matrix per head: `[n, H, R*G, D]`."""
    if readers == 1:
        return q_UHGD
    return q_UHGD.unflatten(0, (-1, readers)).transpose(1, 2).flatten(2, 3)


def _wide(x: torch.Tensor) -> torch.dtype:
    """Softmax is computed in float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
