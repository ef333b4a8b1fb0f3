"""What one update really computes, observed while it computes it.

A hook on the learner's head sees every pack that goes through the model. So the count cannot drift from what the
learner does, however it packs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from arpo.bench.work import Pass
from arpo.learn.attention import FLEX_BLOCK, Form, Layout
from arpo.learn.logprobs import PolicyHead
from arpo.learn.packing import Pack


@contextmanager
def recorded(head: PolicyHead) -> Iterator[list[Pass]]:
    """The passes that go through `head` within, one after the other."""
    passes: list[Pass] = []

    def note(_: Any, arguments: tuple[Pack]) -> None:
        passes.append(executed(head, *arguments))

    handle = head.register_forward_pre_hook(note)
    try:
        yield passes
    finally:
        handle.remove()


def executed(head: PolicyHead, pack: Pack) -> Pass:
    """The pass that `head` makes of a pack."""
    states = len(pack.state_S)
    return Pass(pack.tokens, pairs(pack, head.form), states, chunked=states > head.slice_states)


def pairs(pack: Pack, form: Form | None) -> int:
    """Pairs of query and key that attention visits for a pack. Causal kernels skip what lies ahead; a dense mask costs
    its square whatever it hides; FlexAttention computes whole blocks."""
    if pack.geometry is None or form is None:
        rows, width = pack.input_BT.shape
        return rows * width * (width + 1) // 2
    if form == "dense":
        return sum((stop - start) ** 2 for start, stop in pack.geometry.spans)
    if form == "flex":
        mask = Layout(pack.geometry, form, pack.input_BT.device).block_mask
        return int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()) * FLEX_BLOCK**2
    return pack.geometry.pairs
