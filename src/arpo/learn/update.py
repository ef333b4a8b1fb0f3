"""One optimiser step on a mini-batch of scored trees.

The learner knows trees and credits and no rollout. All trees given to `update` meet in one step, so the copies of a
shared token do too. Every token of a tree is computed once per forward pass (`arpo.learn.packing`); the result depends
neither on that nor on how the mini-batch is cut into passes.

Groups in which no token has an advantage are left out, of the sums and of the means, as if they had not been sampled
(unless the loss has a term that acts without one: KL or entropy bonus). An update in which nothing is left reports so
and makes no step. A loss or gradient that is not finite stops training before the weights or the optimiser are touched.

Several processes make the same step together (`arpo.learn.devices`): the figures are those of one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arpo.credit.base import Credit
from arpo.learn import saving
from arpo.learn.attention import FLEX_BLOCK, best_form
from arpo.learn.devices import devices_of
from arpo.learn.logprobs import PolicyHead
from arpo.learn.losses import Copies, TokenInputs, coefficients, diagnostics, loss_terms
from arpo.learn.memory import disable_dropout, enable_checkpointing
from arpo.learn.mismatch import mismatch
from arpo.learn.optim import Stepper, rate
from arpo.learn.packing import Pack, packs
from arpo.learn.reference import BaseHead
from arpo.learn.rows import FlatTree, Row, all_rows, flatten, per_segment, read_tokens, rows_of
from arpo.learn.settings import LossSettings, OptimSettings
from arpo.learn.trains import DivergenceError as DivergenceError
from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A mini-batch made ready: its trees, the rows that count, and those of their packs that this process computes."""

    flats: Sequence[FlatTree]
    rows: Sequence[Row]
    packs: Sequence[Pack]
    mass: float
    """Sum of all coefficients."""
    metrics: dict[str, float]


class Learner:
    """Holds the policy being trained and its optimiser.

    `model`: a transformers causal language model. `temperature`: at which the trees were sampled. `total_updates`:
    calls of `update` planned, for the schedule. `reference`: what the KL terms hold the policy to, never changed; the
    model itself if it has an adapter, which is then taken off. `accelerator`: an `accelerate.Accelerator` where several
    processes train together; each of them makes every call, with the same whole mini-batches (all groups, not a share)
    in the same order, and computes its part of the passes. The model goes to the accelerator's device.
    Raises ConfigError for a model that cannot be trained in the form that `optim.packing` asks for.
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
        accelerator: Any = None,
    ) -> None:
        if loss.kl and reference is None:
            raise ValueError("loss.kl is above 0: give the learner a reference model")
        self.model = model.eval()
        self.loss = loss
        self.optim = optim
        self.total_updates = total_updates
        self.updates = 0
        """Calls of `update` so far, steps made or not."""
        self.devices = devices_of(accelerator)
        self.devices.place(model)
        form = None if optim.packing == "padded" else best_form(next(model.parameters()).device)
        autocast = torch.bfloat16 if optim.autocast == "bf16" or self.devices.autocast else None
        self.head = PolicyHead(
            model, temperature, form=form, entropy_gradient=loss.entropy_bonus > 0, autocast=autocast
        )
        self.reference: PolicyHead | None = None
        if reference is not None:
            head = BaseHead if reference is model else PolicyHead
            if reference is not model:
                self.devices.place(reference)
            self.reference = head(reference.eval(), temperature, form=form, autocast=autocast)
            if reference is not model:
                self.devices.shard(self.reference)
        self.devices.shard(self.head)
        self.stepper = Stepper(model, optim)
        if optim.gradient_checkpointing:
            enable_checkpointing(model)
            disable_dropout(model)
        self._forward = self.devices.wrap(self.head)

    def update(
        self,
        trees: Sequence[RolloutTree],
        credits: Sequence[Credit],
        old_logp: Sequence[np.ndarray] | None = None,
    ) -> dict[str, float]:
        """One step on all `trees`; returns metrics under the names of the metrics file.

        `old_logp`: with `loss.old = "trainer"`, what `logprobs` returned for these trees before the first step on this
        rollout (None: the weights as they are now).
        Always: `loss`, `grad_norm` (before clipping), `lr`, `num_tokens` (tokens in the loss, copies counted),
        `num_trajectories`, `num_groups` (with signal), `sharing` (tokens of the trajectories / tokens computed),
        `computed_tokens` (padding included), `passes`; unless nothing had signal, those of `losses.diagnostics` too.
        Raises DivergenceError, naming the update and the tasks.
        """
        lr = rate(self.optim, self.updates, self.total_updates)
        if self.loss.old == "trainer" and old_logp is None:
            old_logp = self.logprobs(trees)
        batch = self._batch(trees, credits, old_logp)
        metrics = {"loss": 0.0, "grad_norm": 0.0, "lr": lr} | batch.metrics
        if batch.packs:
            metrics |= self._gradient(batch)
            self.stepper.step(lr)
        self.updates += 1
        return metrics

    def logprobs(self, trees: Sequence[RolloutTree], *, reference: bool = False) -> list[np.ndarray]:
        """Log-probs of every sampled token by the trainer's own forward pass, float32 `[N]` per tree, 0 elsewhere.

        N: the tree's tokens, segment after segment. `reference`: of the reference model. Raises DivergenceError.
        """
        head = self.reference if reference else self.head
        if head is None:
            raise ValueError("there is no reference model: give the learner one")
        flats = [flatten(tree) for tree in trees]
        rows = [row for i, flat in enumerate(flats) for row in all_rows(i, flat)]
        made = self._packs(flats, rows, [row.weight_p for row in rows], [flat.logp_N for flat in flats])
        start = np.cumsum([0] + [len(flat.token_N) for flat in flats])
        sum_N, count_N = np.zeros((2, start[-1]), np.float32)  # a token may be in several packs
        for pack in self.devices.mine(made):
            place_U = pack.place_U.numpy() + start[pack.tree_U.numpy()]
            sum_N[place_U] += self._scored(head, pack.to(head.device, head.dtype)).float().cpu().numpy()
            count_N[place_U] += 1
        logp_N = self.devices.sum(sum_N) / np.maximum(self.devices.sum(count_N), 1)
        found = np.split(logp_N, start[1:-1]) if flats else []
        broken = {flat.tree.task_id for flat, logp_N in zip(flats, found, strict=True) if not np.isfinite(logp_N).all()}
        if broken:
            raise self._diverged("log-probability of a token", broken)
        return found

    def divergence(
        self, trees: Sequence[RolloutTree], old_logp: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, ...]]:
        """ln(old policy / reference) of every sampled token, float64, one array per segment: for KL in the reward.

        `old_logp`: as `logprobs` returns them; None: the sampler's own count.
        """
        flats = [flatten(tree) for tree in trees]
        old = [flat.logp_N for flat in flats] if old_logp is None else old_logp
        known = zip(flats, old, self.logprobs(trees, reference=True), strict=True)
        return [per_segment(flat, own_N.astype(np.float64) - other_N) for flat, own_N, other_N in known]

    def _scored(self, head: PolicyHead, pack: Pack) -> torch.Tensor:
        """A pack's log-probs `[U]` under `head`, without a gradient."""
        model = self.head if head.model is self.model else head  # the root of shards, adapter or not
        with self.devices.scoring(model), head.attention():
            return model(pack)[0]

    def _batch(
        self, trees: Sequence[RolloutTree], credits: Sequence[Credit], old_logp: Sequence[np.ndarray] | None
    ) -> _Batch:
        flats = [flatten(tree) for tree in trees]
        rows: list[Row] = []
        for i, (flat, credit) in enumerate(zip(flats, credits, strict=True)):
            rows += rows_of(i, flat, credit) if self._acts_on(credit) else []
        sampled = [flat.logp_N for flat in flats]
        metrics: dict[str, float] = {}
        old = sampled if old_logp is None or self.loss.old == "sampler" else old_logp
        if self.loss.old == "trainer":
            rows, metrics = self._corrected(rows, old, sampled)
        factors = coefficients([row.weight_p for row in rows], [row.tree for row in rows], self.loss)
        made = self._packs(flats, rows, factors, old)
        computed = sum(pack.tokens for pack in made)
        metrics |= {
            "num_tokens": float(sum(map(len, rows))),
            "num_trajectories": float(len(rows)),
            "num_groups": float(len({row.tree for row in rows})),
            "sharing": read_tokens(flats, rows) / computed if computed else 0.0,
            "computed_tokens": float(computed),
            "passes": float(len(made)),
        }
        return _Batch(flats, rows, self.devices.mine(made), float(sum(factor.sum() for factor in factors)), metrics)

    def _corrected(
        self, rows: Sequence[Row], old: Sequence[np.ndarray], sampled: Sequence[np.ndarray]
    ) -> tuple[list[Row], dict[str, float]]:
        """The rows that agree well enough with the trainer's log-probs, their advantages reweighted."""
        old_logps, sampler_logps = ([source[row.tree][row.place_p] for row in rows] for source in (old, sampled))
        gap = mismatch(old_logps, sampler_logps, self.loss)
        kept = zip(rows, gap.weights, gap.keep_R, strict=True)
        return [row.scaled(weight_p) for row, weight_p, keep in kept if keep], gap.metrics

    def _packs(
        self,
        flats: Sequence[FlatTree],
        rows: Sequence[Row],
        factors: Sequence[np.ndarray],
        old_logp: Sequence[np.ndarray],
    ) -> list[Pack]:
        multiple = FLEX_BLOCK if self.head.form == "flex" else 1
        limits = {"budget": self.optim.micro_tokens, "multiple": multiple}
        return packs(flats, rows, factors, old_logp, packing=self.optim.packing, **limits) if rows else []

    def _acts_on(self, credit: Credit) -> bool:
        return credit.has_signal or bool(self.loss.kl or self.loss.entropy_bonus)

    def _gradient(self, batch: _Batch) -> dict[str, float]:
        """Leave the clipped gradient on the weights (none on failure); metrics, the norm before clipping among them."""
        self.model.train(self.optim.gradient_checkpointing)
        try:
            with self.head.attention():
                sums = self._accumulate(batch)
            return sums | {"grad_norm": self._finite_norm(batch)}
        except BaseException:
            self.stepper.clear()
            raise
        finally:
            self.model.eval()

    def _accumulate(self, batch: _Batch) -> dict[str, float]:
        """Forward and backward over this process's packs; sums over all. Raises only when all are done, everywhere."""
        totals: dict[str, torch.Tensor] = {}
        broken_M = torch.zeros(len(batch.flats), dtype=torch.int64, device=self.head.device)
        for pack in batch.packs:
            with self.devices.passing(last=pack is batch.packs[-1]):
                shares = self._backward(pack.to(self.head.device, self.head.dtype), batch, broken_M)
            for name, share in shares.items():
                totals[name] = totals[name] + share if name in totals else share
        own = [*(float(total) for total in totals.values()), *broken_M.tolist()]
        summed = self.devices.sum(np.array(own, np.float64))
        if broken := np.flatnonzero(summed[len(totals) :]).tolist():
            raise self._diverged("loss", {batch.flats[tree].tree.task_id for tree in broken})
        return dict(zip(totals, summed.tolist(), strict=False))

    def _backward(self, pack: Pack, batch: _Batch, broken_M: torch.Tensor) -> dict[str, torch.Tensor]:
        """Figures of one pack. Adds to `broken_M`, tree by tree, how many terms of the loss are not finite."""
        tokens = self._score(pack)
        loss_U = loss_terms(tokens, self.loss)
        broken_M.index_add_(0, pack.tree_U, (~loss_U.isfinite()).long())
        loss = loss_U.sum()
        (loss * self.devices.factor).backward()
        return {"loss": loss.detach()} | diagnostics(tokens, self.loss, batch.mass)

    def _score(self, pack: Pack) -> TokenInputs:
        reference_U = self._scored(self.reference, pack) if self.reference is not None and self.loss.kl else None
        logp_U, entropy_U = self._forward(pack)
        copies = Copies(pack.index_P, pack.row_P, pack.advantage_P, pack.coefficient_P, pack.rows)
        gain_P = pack.coefficient_P * pack.advantage_P.clamp(min=0)
        cost_P = pack.coefficient_P * pack.advantage_P.clamp(max=0)
        gain_U, cost_U, mass_U = (_summed(share_P, pack) for share_P in (gain_P, cost_P, pack.coefficient_P))
        return TokenInputs(logp_U, pack.old_logp_U, entropy_U, reference_U, gain_U, cost_U, mass_U, copies)

    def _finite_norm(self, batch: _Batch) -> float:
        norm = float(self.stepper.clip())
        if not np.isfinite(norm):
            raise self._diverged("gradient", {batch.flats[row.tree].tree.task_id for row in batch.rows})
        return norm

    def _diverged(self, what: str, task_ids: Iterable[str]) -> DivergenceError:
        ids = sorted(set(task_ids))
        named = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
        return DivergenceError(
            f"update {self.updates + 1}: the {what} is not finite (tasks {named}). The weights were not changed. Lower "
            "optim.lr or optim.max_grad_norm, or look at these tasks' rollouts."
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the model's weights. Of shards: see `Stepper.state_dict`."""
        return {"updates": self.updates, **self.stepper.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.stepper.load_state_dict(state)
        self.updates = int(state["updates"])

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Weights, tokenizer and state into a folder that is there; all processes call it, the first one writes."""
        saving.write(self.model, self.state_dict(), folder, tokenizer, first=self.devices.first)

    def load(self, folder: Path) -> None:
        """Go on where `save` was called. CheckpointError if an adapter was trained on another base."""
        self.load_state_dict(saving.read(self.model, folder))


def _summed(share_P: torch.Tensor, pack: Pack) -> torch.Tensor:
    """Over the copies of each label."""
    return torch.zeros_like(pack.old_logp_U).index_add_(0, pack.index_P, share_P)
