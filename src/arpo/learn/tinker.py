"""A learner whose weights, gradient and optimiser are a Tinker server's; what the update is, is decided here.

Credit, coefficients, the gap between sampler and trainer and the figures that are reported are the local learner's.
The server computes log-probs, adds up the gradient of the rows it is sent (`arpo.learn.tinker_rows` says what stands in
them and why the gradient is ours) and makes AdamW's step. A checkpoint holds the path under which the server keeps
weights and optimiser, so it lasts as long as the server's files do.

A request for the gradient that got lost cannot be sent again: nobody knows whether it was added. The run then ends, and
goes on from its checkpoint.
"""

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from arpo.credit.base import Credit
from arpo.engine.tinker_service import TinkerService
from arpo.engine.tinker_trouble import GoneError, LostError
from arpo.errors import CheckpointError, ConfigError, EngineDownError, EngineError
from arpo.learn.losses import coefficients
from arpo.learn.mismatch import mismatch
from arpo.learn.optim import rate
from arpo.learn.rows import FlatTree, Row, all_rows, flatten, per_segment, rows_of
from arpo.learn.settings import LossSettings, OptimSettings
from arpo.learn.tinker_rows import Batch, server_loss, trail
from arpo.learn.trains import DivergenceError
from arpo.tree import RolloutTree

_FILE = "tinker.json"
_EPSILON = 1e-8
"""AdamW's, as the local learner has it."""


class TinkerLearner:
    """Implements `arpo.learn.trains.Trains`. `total_updates`: calls of `update` planned, for the schedule.

    Raises ConfigError, naming the key, for what the server cannot do.
    """

    def __init__(self, service: TinkerService, loss: LossSettings, optim: OptimSettings, *, total_updates: int) -> None:
        self.service, self.loss, self.optim, self.total_updates = service, loss, optim, total_updates
        self.updates = 0
        """Calls of `update` so far, steps made or not."""
        self._served = server_loss(loss, service.features.losses)
        self._reduction = service.features.reduction(service.settings)
        if not service.clips and math.isfinite(optim.max_grad_norm):
            raise ConfigError(
                f"optim.max_grad_norm = {optim.max_grad_norm:g}: the server at {service.settings.base_url} does not "
                "clip gradients (it reports their norm); set it to inf"
            )

    def update(
        self,
        trees: Sequence[RolloutTree],
        credits: Sequence[Credit],
        old_logp: Sequence[np.ndarray] | None = None,
    ) -> dict[str, float]:
        """One step on all `trees`; metrics as of the local learner, but for the entropy, which no server tells.

        `grad_norm` is there if the server reports it. `passes`: 2 where the gradient is taken here, else 1.
        """
        lr = rate(self.optim, self.updates, self.total_updates)
        if self.loss.old == "trainer" and old_logp is None:
            old_logp = self.logprobs(trees)
        batch, metrics = self._batch(trees, credits, old_logp)
        metrics = {"loss": 0.0, "lr": lr} | metrics
        if batch.rows:
            names = {row.tree: trees[row.tree].task_id for row in batch.rows}
            metrics |= self._gradient(batch, names) | self._step(lr)
        self.updates += 1
        return metrics

    def logprobs(self, trees: Sequence[RolloutTree], *, reference: bool = False) -> list[np.ndarray]:
        """As the local learner's; the reference is the server's base model, which is what the adapter starts as."""
        flats = [flatten(tree) for tree in trees]
        rows = [row for i, flat in enumerate(flats) for row in all_rows(i, flat)]
        found = self._scored(flats, rows, reference=reference)
        sums, counts = ([np.zeros(len(flat.token_N)) for flat in flats] for _ in range(2))
        for row, logp_p in zip(rows, found, strict=True):
            sums[row.tree][row.place_p] += logp_p
            counts[row.tree][row.place_p] += 1
        return [(s / np.maximum(c, 1)).astype(np.float32) for s, c in zip(sums, counts, strict=True)]

    def divergence(
        self, trees: Sequence[RolloutTree], old_logp: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, ...]]:
        """ln(old policy / reference) of every sampled token, float64, one array per segment."""
        flats = [flatten(tree) for tree in trees]
        old = [flat.logp_N for flat in flats] if old_logp is None else old_logp
        known = zip(flats, old, self.logprobs(trees, reference=True), strict=True)
        return [per_segment(flat, own_N.astype(np.float64) - other_N) for flat, own_N, other_N in known]

    def save(self, folder: Path, tokenizer: Any) -> None:
        """The tokenizer, and a file that says where the server keeps the rest."""
        path = self.service.save(f"arpo-{self.updates}-{secrets.token_hex(4)}")
        tokenizer.save_pretrained(folder)
        kept = {"path": path, "updates": self.updates, **self._about()}
        (folder / _FILE).write_text(json.dumps(kept, indent=1))

    def load(self, folder: Path) -> None:
        """Go on where `save` was called. CheckpointError if the server no longer has it, or it is another policy's."""
        file = folder / _FILE
        if not file.exists():
            raise CheckpointError(
                f"checkpoint {folder} was not trained by a Tinker server ({_FILE} is missing); train on with the "
                "engine that it was begun with, or start a new run"
            )
        kept = json.loads(file.read_text())
        for name, own in self._about().items():
            if kept[name] != own:
                raise CheckpointError(
                    f"checkpoint {folder} has {name} = {kept[name]!r} and this run {own!r}; give it back, or start a "
                    "new run"
                )
        try:
            self.service.load(kept["path"])
        except EngineError as error:
            if isinstance(error, EngineDownError) and not isinstance(error, GoneError):
                raise
            raise CheckpointError(
                f"checkpoint {folder}: the server does not give back {kept['path']} ({error}); start it with the "
                "checkpoints and the database that it had, or start a new run"
            ) from error
        self.updates = int(kept["updates"])

    def _about(self) -> dict[str, Any]:
        return {"base_model": self.service.base_model, "rank": self.service.settings.rank}

    # --- one step ------------------------------------------------------------------------------------------------

    def _batch(
        self, trees: Sequence[RolloutTree], credits: Sequence[Credit], old_logp: Sequence[np.ndarray] | None
    ) -> tuple[Batch, dict[str, float]]:
        flats = [flatten(tree) for tree in trees]
        rows: list[Row] = []
        for i, (flat, credit) in enumerate(zip(flats, credits, strict=True)):
            rows += rows_of(i, flat, credit) if credit.has_signal or self.loss.kl else []
        sampled = [flat.logp_N for flat in flats]
        old = sampled if old_logp is None or self.loss.old == "sampler" else old_logp
        metrics: dict[str, float] = {}
        if self.loss.old == "trainer":
            old_p, sampled_p = ([source[row.tree][row.place_p] for row in rows] for source in (old, sampled))
            gap = mismatch(old_p, sampled_p, self.loss)
            kept = zip(rows, gap.weights, gap.keep_R, strict=True)
            rows, metrics = [row.scaled(weight_p) for row, weight_p, keep in kept if keep], gap.metrics
        factors = coefficients([row.weight_p for row in rows], [row.tree for row in rows], self.loss)
        trails = [trail(flats[row.tree], row) for row in rows]
        old_logps = [old[row.tree][row.place_p].astype(np.float64) for row in rows]
        passes = 1 + self._served.here if rows else 0
        metrics |= {
            "num_tokens": float(sum(map(len, rows))),
            "num_trajectories": float(len(rows)),
            "num_groups": float(len({row.tree for row in rows})),
            "sharing": 1.0,
            "computed_tokens": float(passes * sum(len(path.token_T) for path in trails)),
            "passes": float(passes),
        }
        return Batch(rows, trails, factors, old_logps), metrics

    def _gradient(self, batch: Batch, names: dict[int, str]) -> dict[str, float]:
        """Have the gradient added up at the server; loss and diagnostics."""
        if self.loss.kl:
            batch = replace(batch, reference=self._reference(batch))
        if not self._served.here:
            found = self._added(batch, batch.passages(self._reduction))
            self._check(found, batch, names)
            return batch.judged(found, self.loss)[0]
        logps = self._gathered(batch, self.service.forward(batch.scoring()))
        self._check(logps, batch, names)
        metrics, gradients = batch.judged(logps, self.loss)
        self._check(gradients, batch, names)
        self._added(batch, batch.carried(gradients, logps, self._reduction))
        return metrics

    def _added(self, batch: Batch, passages: Sequence[Any]) -> list[np.ndarray]:
        served = self._served
        try:
            return self._gathered(batch, self.service.forward_backward(passages, served.name, served.config))
        except LostError as error:
            raise EngineDownError(
                f"{error}; whether the gradient was added is unknown. Go on from the last checkpoint with --resume"
            ) from error

    def _step(self, lr: float) -> dict[str, float]:
        optim = self.optim
        adam = {"learning_rate": lr, "beta1": optim.betas[0], "beta2": optim.betas[1], "eps": _EPSILON}
        adam["weight_decay"] = optim.weight_decay
        if self.service.clips and math.isfinite(optim.max_grad_norm):
            adam["grad_clip_norm"] = optim.max_grad_norm
        reported = self.service.step(**adam)
        norms = [value for name, value in reported.items() if name.split("/")[-1] == "grad_norm"]
        return {"grad_norm": norms[0]} if norms else {}

    def _gathered(self, batch: Batch, found: Sequence[np.ndarray]) -> list[np.ndarray]:
        pairs = zip(batch.trails, found, strict=True)
        return [path.gathered(logp_T).astype(np.float64) for path, logp_T in pairs]

    def _reference(self, batch: Batch) -> list[np.ndarray]:
        return self._gathered(batch, self.service.base_logprobs([path.token_T for path in batch.trails]))

    def _scored(self, flats: Sequence[FlatTree], rows: Sequence[Row], *, reference: bool) -> list[np.ndarray]:
        """Log-probs `[p]` of each row under the policy or the reference."""
        trails = [trail(flats[row.tree], row) for row in rows]
        empty = [np.zeros(len(row)) for row in rows]
        batch = Batch(rows, trails, empty, empty)
        if not rows:
            return []
        found = self._reference(batch) if reference else self._gathered(batch, self.service.forward(batch.scoring()))
        self._check(found, batch, {row.tree: flats[row.tree].tree.task_id for row in rows})
        return found

    def _check(self, values: Sequence[np.ndarray], batch: Batch, names: dict[int, str]) -> None:
        pairs = zip(batch.rows, values, strict=True)
        broken = sorted({names[row.tree] for row, value_p in pairs if not np.isfinite(value_p).all()})
        if broken:
            named = ", ".join(broken[:8]) + (f" and {len(broken) - 8} more" if len(broken) > 8 else "")
            raise DivergenceError(
                f"update {self.updates + 1}: a log-prob or its gradient is not finite (tasks {named}). The weights "
                "were not changed. Lower optim.lr, or look at these tasks' rollouts."
            )
