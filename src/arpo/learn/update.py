"""One optimiser step on a mini-batch of scored trees.

The learner knows trees and credits and no rollout. All trees given to `update` meet in one step, so the copies of a
shared token do too. The result does not depend on how the mini-batch is cut into forward passes.

Groups in which no token has an advantage are left out, of the sums and of the means, as if they had not been sampled
(unless the loss has a term that acts without one: KL or entropy bonus). An update in which nothing is left reports so
and makes no step. A loss or gradient that is not finite stops training before the weights or the optimiser are touched.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from arpo.credit.base import Credit
from arpo.errors import ArpoError
from arpo.learn.batch import MicroBatch, Row, collate, rows_of, split
from arpo.learn.logprobs import PolicyHead
from arpo.learn.losses import TokenInputs, coefficients, diagnostics, token_loss
from arpo.learn.optim import Stepper, rate
from arpo.learn.settings import LossSettings, OptimSettings
from arpo.tree import RolloutTree


class DivergenceError(ArpoError):
    """The loss or its gradient is NaN or infinite. Weights and optimiser are as they were before the update."""

    exit_code = 4


class Learner:
    """Holds the policy being trained and its optimiser.

    `model`: a transformers causal language model. `temperature`: at which the trees were sampled. `total_updates`:
    calls of `update` planned, for the schedule. `reference`: what the KL term holds the policy to; never changed.
    """

    def __init__(
        self,
        model: Any,
        loss: LossSettings,
        optim: OptimSettings,
        *,
        total_updates: int,
        temperature: float = 1.0,
        reference: Any = None,
    ) -> None:
        if loss.kl and reference is None:
            raise ValueError("loss.kl is above 0: give the learner a reference model")
        self.model = model
        self.loss = loss
        self.optim = optim
        self.total_updates = total_updates
        self.updates = 0
        """Calls of `update` so far, steps made or not."""
        self.stepper = Stepper(model, optim)
        self.head = PolicyHead(model, temperature, entropy_gradient=loss.entropy_bonus > 0)
        self.reference = None if reference is None else PolicyHead(reference.eval(), temperature)
        if optim.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            _disable_dropout(model)

    def update(self, trees: Sequence[RolloutTree], credits: Sequence[Credit]) -> dict[str, float]:
        """One step on all `trees`; returns metrics under the names of the metrics file.

        Always: `loss`, `grad_norm` (before clipping), `lr`, `num_tokens` (tokens in the loss, copies counted),
        `num_trajectories`, `num_groups` (with signal); and, unless nothing had signal, those of `losses.diagnostics`.
        Raises DivergenceError, naming the update and the tasks.
        """
        lr = rate(self.optim, self.updates, self.total_updates)
        groups = [rows_of(tree, credit) for tree, credit in zip(trees, credits, strict=True) if self._acts_on(credit)]
        rows = [row for group in groups for row in group]
        sums: dict[str, float] = {"loss": 0.0}
        grad_norm = 0.0
        if rows:
            sums, grad_norm = self._gradient(rows)
            self.stepper.step(lr)
        self.updates += 1
        return sums | {
            "grad_norm": grad_norm,
            "lr": lr,
            "num_tokens": float(sum(len(row.position_p) for row in rows)),
            "num_trajectories": float(len(rows)),
            "num_groups": float(sum(map(bool, groups))),
        }

    def _acts_on(self, credit: Credit) -> bool:
        return credit.has_signal or bool(self.loss.kl or self.loss.entropy_bonus)

    def _gradient(self, rows: Sequence[Row]) -> tuple[dict[str, float], float]:
        """Leave the clipped gradient on the weights; (metrics, norm before clipping). None is left on failure."""
        self.model.train(self.optim.gradient_checkpointing)
        try:
            sums = self._accumulate(rows)
            return sums, self._finite_norm(rows)
        except BaseException:
            self.stepper.clear()
            raise
        finally:
            self.model.eval()

    def _accumulate(self, rows: Sequence[Row]) -> dict[str, float]:
        """Forward and backward over all micro-batches."""
        factors = coefficients([row.weight_p for row in rows], self.loss.aggregation)
        totals: dict[str, torch.Tensor] = {}
        for indices in split(rows, self.optim.micro_tokens):
            batch = collate([rows[i] for i in indices], [factors[i] for i in indices])
            for name, share in self._backward(batch).items():
                totals[name] = totals[name] + share if name in totals else share
        return {name: float(total) for name, total in totals.items()}

    def _backward(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        batch = batch.to(next(self.model.parameters()).device, self.head.dtype)
        tokens = self._score(batch)
        loss_P = token_loss(tokens, self.loss) * batch.coefficient_P
        if not bool(loss_P.isfinite().all()):
            broken = batch.row_P[~loss_P.isfinite()].unique().tolist()
            raise self._diverged("loss", {batch.task_ids[row] for row in broken})
        loss = loss_P.sum()
        loss.backward()
        return {"loss": loss.detach()} | diagnostics(tokens, batch.coefficient_P, self.loss)

    def _score(self, batch: MicroBatch) -> TokenInputs:
        place = (batch.input_BT, batch.row_P, batch.column_P, batch.label_P)
        logp_P, entropy_P = self.head(*place)
        reference_P = None
        if self.reference is not None:
            with torch.no_grad():
                reference_P = self.reference(*place)[0].to(logp_P.dtype)
        return TokenInputs(logp_P, batch.old_logp_P, batch.advantage_P, entropy_P, reference_P)

    def _finite_norm(self, rows: Sequence[Row]) -> float:
        norm = float(self.stepper.clip())
        if not np.isfinite(norm):
            raise self._diverged("gradient", {row.task_id for row in rows})
        return norm

    def _diverged(self, what: str, task_ids: set[str]) -> DivergenceError:
        named = ", ".join(sorted(task_ids)[:8]) + (f" and {len(task_ids) - 8} more" if len(task_ids) > 8 else "")
        return DivergenceError(
            f"update {self.updates + 1}: the {what} is not finite (tasks {named}). The weights were not changed. Lower "
            "optim.lr or optim.max_grad_norm, or look at these tasks' rollouts."
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the model's weights."""
        return {"updates": self.updates, **self.stepper.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.stepper.load_state_dict(state)
        self.updates = int(state["updates"])


def _disable_dropout(model: nn.Module) -> None:
    """Checkpointing needs training mode; the ratio must still compare the policy with itself."""
    module: Any
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
