"""What the training loop asks of a learner, whoever holds the weights: this process, several, or a server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from arpo.credit.base import Credit
from arpo.errors import ArpoError
from arpo.learn.settings import LossSettings
from arpo.tree import RolloutTree


class DivergenceError(ArpoError):
    """The loss or its gradient is NaN or infinite. Weights and optimiser are as they were before the update."""

    exit_code = 4


class Trains(Protocol):
    """Every verb may be collective: where several processes train together, all of them make the same calls with the
    same arguments in the same order."""

    @property
    def loss(self) -> LossSettings: ...

    @property
    def updates(self) -> int:
        """Calls of `update` so far, steps made or not."""
        ...

    def update(
        self,
        trees: Sequence[RolloutTree],
        credits: Sequence[Credit],
        old_logp: Sequence[np.ndarray] | None = None,
    ) -> dict[str, float]:
        """One optimiser step on a mini-batch of whole groups; its metrics. DivergenceError leaves the weights alone.

        `old_logp`: what `logprobs` gave for these trees before the first step on this rollout.
        """
        ...

    def logprobs(self, trees: Sequence[RolloutTree], *, reference: bool = False) -> list[np.ndarray]:
        """Log-probs of every sampled token under the policy (or the reference) as it is now, float32 `[N]` per tree.

        N: the tree's tokens, segment after segment; 0 where nothing was sampled.
        """
        ...

    def divergence(
        self, trees: Sequence[RolloutTree], old_logp: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, ...]]:
        """ln(old policy / reference) of every sampled token, float64, one array per segment."""
        ...

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Write all that `load` needs to go on, weights and tokenizer included, into a folder that is there.

        Where there are several processes all call it and the first one writes.
        """
        ...

    def load(self, folder: Path) -> None:
        """Go on where `save` was called. CheckpointError if that belongs to another policy."""
        ...
