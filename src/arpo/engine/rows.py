"""One sequence to be continued, from request to answer."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from arpo.engine.base import SampleParams
from arpo.tree import Finish, Segment, Source


@dataclass(slots=True, eq=False)
class Row:
    """`tokens`: prefix and sampled tokens; the prefix has `start` of them. `slot`: -1 while it waits."""

    tokens: list[int]
    start: int
    params: SampleParams
    seed: int
    limit: int
    """Length at which the budget or the context is used up."""
    ends: frozenset[int]
    halting: frozenset[int]
    """Ids after which the row may be over: its end tokens, and candidates of its stop strings."""
    future: asyncio.Future[Segment]
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    slot: int = -1
    counted: bool = False

    def segment(self, finish: Finish, version: int) -> Segment:
        """What was sampled."""
        return Segment(
            tokens=np.array(self.tokens[self.start :], np.int32),
            source=Source.POLICY,
            logprobs=np.array(self.logprobs, np.float32),
            entropies=np.array(self.entropies, np.float32),
            finish=finish,
            version=version,
        )


def frozen(ids: Iterable[int]) -> frozenset[int]:
    """A set of ids as plain ints, which hash faster than numpy's."""
    return frozenset(int(token) for token in ids)
