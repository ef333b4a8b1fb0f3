"""Trees and losses in the terms of the Tinker API: plain rows, one per trajectory, and a named loss function.

The API knows no trees, so a shared token is sent once for each trajectory that holds it. That changes the cost, not
the gradient: our losses are sums over copies (`arpo.learn.losses.base`).

A row predicts each of its tokens from those before it, so what belongs to token t (its log-prob when it was sampled,
its advantage) stands at place t - 1, beside the input token t - 1 whose output predicts it.

Our loss is the sum over rows r and their tokens of c A f(ratio): c is the coefficient, which holds the weights of the
credit and the aggregation of the whole mini-batch. A server sums over tokens, or takes each row's mean and averages the
rows. All loss functions of the API are homogeneous in A, so c goes into the advantage, multiplied by what the server
will divide by: its gradient is ours, the factor included, so a bound on its norm means what it says.

Where no function of the API is the family's, the gradient is taken here: with logp the trainer's log-probs of a forward
pass, g = d loss / d logp of each token by our own code. `importance_sampling` with those same log-probs and
advantages -g has, at ratio 1, just that gradient.

Shapes: N tokens of a tree, T tokens of a row, p of them in the loss.
Source of the loss functions: the Tinker API's documentation of losses; skyrl 0.3.0, `skyrl/tinker/loss_fns.py` and
`skyrl/backends/jax.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from arpo.engine.tinker_features import Reduction
from arpo.engine.tinker_service import Passage
from arpo.errors import ConfigError
from arpo.learn.losses import Copies, TokenInputs, diagnostics, loss_terms
from arpo.learn.rows import FlatTree, Row
from arpo.learn.settings import AepoLoss, CispoLoss, GspoLoss, LossSettings


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """A row's tokens `[T]`, up to the last one in the loss, their places among its tree's `[T]`, and where in the row
    those in the loss stand, `[p]`, none of them 0."""

    token_T: np.ndarray
    place_T: np.ndarray
    at_p: np.ndarray

    def spread(self, value_p: np.ndarray) -> np.ndarray:
        """Values of the tokens in the loss at the places that predict them, `[T - 1]`, 0 elsewhere."""
        value_T = np.zeros(len(self.token_T) - 1)
        value_T[self.at_p - 1] = value_p
        return value_T

    def gathered(self, value_T: np.ndarray) -> np.ndarray:
        """The reverse of `spread`, `[p]`."""
        return np.asarray(value_T[self.at_p - 1])


def trail(flat: FlatTree, row: Row) -> Trail:
    """The trajectory of a row as the API wants it."""
    path = flat.tree.ancestry(row.leaf)
    place_T = np.concatenate([np.arange(flat.start_S[node], flat.start_S[node] + flat.size_S[node]) for node in path])
    at_p = np.flatnonzero(np.isin(place_T, row.place_p))
    place_T = place_T[: at_p[-1] + 1]
    return Trail(flat.token_N[place_T], place_T, at_p)


@dataclass(frozen=True, slots=True)
class ServerLoss:
    """A loss function of the API with its thresholds; `here`: the gradient is taken here, and this only carries it."""

    name: str
    config: Mapping[str, float] | None
    here: bool = False


def server_loss(loss: LossSettings, supported: frozenset[str]) -> ServerLoss:
    """What computes this loss at the server. ConfigError naming the key if nothing does."""
    if loss.entropy_bonus:
        raise ConfigError(
            f"loss.entropy_bonus = {loss.entropy_bonus:g}: a Tinker server has no gradient of the entropy; set it to 0"
        )
    named = _named(loss)
    if named is not None and named.name in supported:
        return named
    if "importance_sampling" not in supported:
        raise ConfigError(
            f'loss.type = "{loss.type}" with these options is no loss of this server, and it has no '
            f"importance_sampling either, through which it could be computed; it has {', '.join(sorted(supported))}"
        )
    return ServerLoss("importance_sampling", None, here=True)


def _named(loss: LossSettings) -> ServerLoss | None:
    """The API's own function that is this loss, if there is one."""
    if loss.kl or isinstance(loss, GspoLoss | AepoLoss):
        return None
    if isinstance(loss, CispoLoss):
        return ServerLoss("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 1 + loss.clip_high})
    if loss.dual_clip is not None or loss.max_ratio is not None:
        return None
    return ServerLoss("ppo", {"clip_low_threshold": 1 - loss.clip_low, "clip_high_threshold": 1 + loss.clip_high})


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows of one step, and arrays `[p]` for each of them. `reference`: None without a KL term."""

    rows: Sequence[Row]
    trails: Sequence[Trail]
    coefficients: Sequence[np.ndarray]
    old_logp: Sequence[np.ndarray]
    reference: Sequence[np.ndarray] | None = None

    def passages(self, reduction: Reduction) -> list[Passage]:
        """For one of the API's own functions: coefficient times advantage, against the old policy's log-probs."""
        advantages = [c * row.advantage_p for c, row in zip(self.coefficients, self.rows, strict=True)]
        return self._passages(advantages, self.old_logp, reduction)

    def carried(
        self, gradients: Sequence[np.ndarray], logps: Sequence[np.ndarray], reduction: Reduction
    ) -> list[Passage]:
        """For a gradient that was taken here: `gradients` are d loss / d logp, `logps` the log-probs they hold for."""
        return self._passages([-gradient for gradient in gradients], logps, reduction)

    def _passages(
        self, advantages: Sequence[np.ndarray], logps: Sequence[np.ndarray], reduction: Reduction
    ) -> list[Passage]:
        """Multiplied by what the server will divide by: tokens of the row, and rows of the step."""
        made = []
        for path, advantage_p, logp_p in zip(self.trails, advantages, logps, strict=True):
            means = reduction == "sequence_mean"
            factor = len(path.at_p) * len(self.rows) if means else 1
            ones = path.spread(np.ones(len(path.at_p))) if means else None
            made.append(Passage(path.token_T, ones, path.spread(advantage_p * factor), path.spread(logp_p)))
        return made

    def scoring(self) -> list[Passage]:
        """For a pass that only scores."""
        return [Passage(path.token_T, path.spread(np.ones(len(path.at_p)))) for path in self.trails]

    def judged(self, logps: Sequence[np.ndarray], loss: LossSettings) -> tuple[dict[str, float], list[np.ndarray]]:
        """Loss and diagnostics at these log-probs under the policy, and d loss / d logp `[p]` of each row.

        The policy's entropy is not known, so no figure of it is among them.
        """
        logp_P = torch.tensor(np.concatenate(list(logps)), dtype=torch.float64, requires_grad=True)
        tokens = self._tokens(logp_P)
        value = loss_terms(tokens, loss).sum()
        (gradient_P,) = torch.autograd.grad(value, logp_P)
        mass = float(sum(c.sum() for c in self.coefficients))
        found = {"loss": float(value.detach())} | {k: float(v) for k, v in diagnostics(tokens, loss, mass).items()}
        del found["entropy"]
        return found, np.split(gradient_P.numpy(), np.cumsum([len(row) for row in self.rows])[:-1])

    def _tokens(self, logp_P: torch.Tensor) -> TokenInputs:
        """Every copy is a token of its own."""
        advantage_P, mass_P, old_P = (
            torch.tensor(np.concatenate(list(values)), dtype=torch.float64)
            for values in ([row.advantage_p for row in self.rows], self.coefficients, self.old_logp)
        )
        row_P = torch.tensor(np.repeat(np.arange(len(self.rows)), [len(row) for row in self.rows]))
        reference_P = None
        if self.reference is not None:
            reference_P = torch.tensor(np.concatenate(list(self.reference)), dtype=torch.float64)
        copies = Copies(torch.arange(len(row_P)), row_P, advantage_P, mass_P, len(self.rows))
        gain_P, cost_P = mass_P * advantage_P.clamp(min=0), mass_P * advantage_P.clamp(max=0)
        return TokenInputs(logp_P, old_P, torch.zeros_like(old_P), reference_P, gain_P, cost_P, mass_P, copies)
