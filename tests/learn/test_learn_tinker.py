"""A learner at a server, without one: a bigram model stands in, with the loss functions and averages of the API.

The servers' arithmetic is written out here as it is documented (and as skyrl 0.3.0 does it), the gradient that is
wanted by our own losses on the same model; so a target that is one place off, a weight that is lost or a factor that is
not divided out shows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_trees import small_tree

from arpo.credit.base import Credit, assign_all
from arpo.credit.settings import HardCredit
from arpo.engine.settings import TinkerSettings
from arpo.engine.tinker_features import Features
from arpo.engine.tinker_service import Passage, inputs
from arpo.engine.tinker_trouble import LostError
from arpo.errors import CheckpointError, ConfigError, EngineDownError, EngineError
from arpo.learn.losses import TokenInputs, coefficients, loss_terms
from arpo.learn.losses.base import Copies
from arpo.learn.rows import flatten, rows_of
from arpo.learn.settings import OptimSettings, loss_settings
from arpo.learn.tinker import TinkerLearner
from arpo.learn.tinker_rows import server_loss, trail
from arpo.learn.trains import DivergenceError
from arpo.tree import Outcome, RolloutTree

V = 24
UNCLIPPED = OptimSettings(max_grad_norm=float("inf"))
ALL = frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"})


class Bigrams:
    """In place of a TinkerService: token t is drawn given token t - 1, and the gradient is kept."""

    base_model = "base"

    def __init__(self, *, skyrl: bool, losses: frozenset[str] = ALL) -> None:
        self.features = Features(skyrl, losses, clips=not skyrl, top_k=False, models={})
        self.settings, self.clips = TinkerSettings(), not skyrl
        self.logits_VV = torch.randn(V, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.logits_VV.requires_grad_()
        self.adam: dict[str, float] = {}
        self.calls: list[str] = []
        self.lost: Exception | None = None

    def logp(self, given: Sequence[int], target: Sequence[int]) -> torch.Tensor:
        return self.logits_VV.log_softmax(-1)[torch.tensor(np.asarray(given)), torch.tensor(np.asarray(target))]

    def forward(self, rows: Sequence[Passage]) -> list[np.ndarray]:
        self.calls.append("forward")
        return [self.logp(row.tokens[:-1], row.tokens[1:]).detach().numpy() for row in rows]

    base_logprobs_offset = 0.5

    def base_logprobs(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [self.logp(row[:-1], row[1:]).detach().numpy() - self.base_logprobs_offset for row in rows]

    def forward_backward(self, rows: Sequence[Passage], loss: str, config: Mapping[str, float] | None) -> list[Any]:
        if self.lost:
            raise self.lost
        self.calls.append(loss)
        total, found = torch.zeros((), dtype=torch.float64), []
        for row in rows:
            sent = {name: torch.tensor(value) for name, value in inputs(row).items()}
            logp_T = self.logp(row.tokens[:-1], sent["target_tokens"].tolist())
            terms_T = self._terms(logp_T, sent, loss, config or {})
            weight_T = sent.get("weights", torch.ones(len(logp_T)))
            total = total + (
                (terms_T * weight_T).sum() / weight_T.sum() / len(rows) if self.features.skyrl else terms_T.sum()
            )
            found.append(logp_T.detach().numpy())
        total.backward()
        return found

    def _terms(self, logp_T: Any, sent: Mapping[str, Any], loss: str, config: Mapping[str, float]) -> torch.Tensor:
        ratio_T, advantage_T = (logp_T - sent["logprobs"]).exp(), sent["advantages"]
        if loss == "importance_sampling":
            return -ratio_T * advantage_T
        held_T = ratio_T.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
        if loss == "cispo":
            return -held_T.detach() * logp_T * advantage_T
        assert loss == "ppo"
        return -torch.minimum(ratio_T * advantage_T, held_T * advantage_T)

    def step(self, **adam: float) -> dict[str, float]:
        self.adam = adam
        return {"skyrl.ai/grad_norm": float(self.logits_VV.grad.norm())} if self.features.skyrl else {}

    def save(self, name: str) -> str:
        return f"tinker://run/weights/{name}"

    def load(self, path: str) -> None:
        if self.lost:
            raise self.lost
        self.loaded = path


def batch(shift: float = 0.4) -> tuple[list[RolloutTree], list[Credit]]:
    """Two trees as a nearby policy would have sampled them, with rewards that differ."""
    model, trees = Bigrams(skyrl=True), []
    for seed, rewards in enumerate(((1.0, 0.0, -0.5), (0.0, 1.0, 1.0))):
        tree, draw = small_tree(), np.random.default_rng(seed)
        flat = flatten(tree)
        logp_N = model.logp(flat.token_N[flat.previous_N], flat.token_N).detach().numpy()
        noisy_N = logp_N + draw.normal(scale=shift, size=len(logp_N))
        pieces = np.split(noisy_N.astype(np.float32), flat.start_S[1:])
        segments = tuple(
            replace(s, logprobs=piece) if s.is_policy else s for s, piece in zip(tree.segments, pieces, strict=True)
        )
        outcomes = tuple(Outcome(reward) for reward in rewards)
        trees.append(replace(tree, task_id=f"t{seed}", segments=segments, outcomes=outcomes))
    return trees, assign_all(trees, HardCredit())


def wanted(model: Bigrams, trees: Sequence[RolloutTree], credits: Sequence[Credit], loss: Any) -> torch.Tensor:
    """The gradient of our loss, token by token and copy by copy."""
    flats = [flatten(tree) for tree in trees]
    rows = [row for i in range(len(trees)) for row in rows_of(i, flats[i], credits[i])]
    factors = coefficients([row.weight_p for row in rows], [row.tree for row in rows], loss)
    token = np.concatenate([flats[row.tree].token_N[row.place_p] for row in rows])
    given = np.concatenate([flats[row.tree].token_N[flats[row.tree].previous_N[row.place_p]] for row in rows])
    old_P, advantage_P, factor_P = (
        torch.tensor(np.concatenate(values).astype(np.float64))
        for values in (
            [flats[row.tree].logp_N[row.place_p] for row in rows],
            [row.advantage_p for row in rows],
            factors,
        )
    )
    row_P = torch.tensor(np.repeat(np.arange(len(rows)), [len(row) for row in rows]))
    logp_P = model.logp(given, token)
    reference_P = logp_P.detach() - model.base_logprobs_offset
    copies = Copies(torch.arange(len(token)), row_P, advantage_P, factor_P, len(rows))
    gain_P, cost_P = factor_P * advantage_P.clamp(min=0), factor_P * advantage_P.clamp(max=0)
    tokens = TokenInputs(logp_P, old_P, torch.zeros(len(token)), reference_P, gain_P, cost_P, factor_P, copies)
    (gradient,) = torch.autograd.grad(loss_terms(tokens, loss).sum(), model.logits_VV)
    return gradient


LOSSES = {
    "ppo": [
        loss_settings("dapo"),
        loss_settings("grpo"),
        loss_settings("dr_grpo", length=50),
        loss_settings("reinforce++", aggregation="group_sum"),
    ],
    "cispo": [loss_settings("cispo", clip_high=0.1)],
    "importance_sampling": [
        loss_settings("clip", dual_clip=1.3),
        loss_settings("grpo", kl=0.3),
        loss_settings("gspo", clip_low=0.05, clip_high=0.05),
        loss_settings("aepo"),
        loss_settings("dapo", max_ratio=1.4),
    ],
}


@pytest.mark.parametrize("skyrl", [True, False], ids=["means", "sums"])
@pytest.mark.parametrize(
    ("served", "loss"), [(name, loss) for name, losses in LOSSES.items() for loss in losses], ids=lambda x: str(x)[:40]
)
def test_the_gradient_at_the_server_is_ours(served: str, loss: Any, skyrl: bool) -> None:
    model, (trees, credits) = Bigrams(skyrl=skyrl), batch()
    optim = UNCLIPPED if skyrl else OptimSettings()

    metrics = TinkerLearner(model, loss, optim, total_updates=1).update(trees, credits)  # type: ignore[arg-type]

    ours = wanted(model, trees, credits, loss)
    assert model.calls == (["forward", served] if served == "importance_sampling" else [served])
    torch.testing.assert_close(model.logits_VV.grad, ours, rtol=1e-5, atol=1e-7)
    if skyrl:
        assert metrics["grad_norm"] == pytest.approx(float(ours.norm()), rel=1e-5)
    else:
        assert "grad_norm" not in metrics
        assert model.adam["grad_clip_norm"] == 1.0


def test_what_belongs_to_a_token_stands_where_it_is_predicted() -> None:
    trees, credits = batch()
    flat = flatten(trees[0])
    row = rows_of(0, flat, credits[0])[1]
    path = trail(flat, row)
    assert path.token_T.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert path.at_p.tolist() == [3, 4, 9, 10, 11]
    assert path.spread(np.arange(1.0, 6)).tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 5]
    assert path.gathered(path.spread(np.arange(1.0, 6))).tolist() == [1, 2, 3, 4, 5]
    sent = inputs(Passage(path.token_T, None, path.spread(row.advantage_p), path.spread(row.weight_p)))
    assert sent["target_tokens"].tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert set(sent) == {"target_tokens", "advantages", "logprobs"}
    assert len(sent["advantages"]) == len(path.token_T) - 1


def test_log_probs_of_every_sampled_token() -> None:
    model, (trees, _) = Bigrams(skyrl=True), batch()
    learner = TinkerLearner(model, loss_settings("grpo"), UNCLIPPED, total_updates=1)  # type: ignore[arg-type]
    flat = flatten(trees[0])
    own = np.concatenate([np.full(len(s), s.is_policy) for s in trees[0].segments])
    expected_N = np.where(own, model.logp(flat.token_N[flat.previous_N], flat.token_N).detach().numpy(), 0)
    np.testing.assert_allclose(learner.logprobs(trees)[0], expected_N, atol=1e-6)
    pieces = learner.divergence(trees, learner.logprobs(trees))[0]
    np.testing.assert_allclose(np.concatenate(pieces), model.base_logprobs_offset, atol=1e-6)


def test_what_cannot_be_mapped_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"loss\.entropy_bonus"):
        server_loss(loss_settings("grpo", entropy_bonus=0.1), ALL)
    with pytest.raises(ConfigError, match=r'loss\.type = "gspo"'):
        server_loss(loss_settings("gspo"), frozenset({"ppo"}))
    with pytest.raises(ConfigError, match=r"optim\.max_grad_norm"):
        TinkerLearner(
            Bigrams(skyrl=True),  # type: ignore[arg-type]
            loss_settings("grpo"),
            OptimSettings(),
            total_updates=1,
        )


def test_a_batch_without_signal_makes_no_step() -> None:
    model, (trees, _) = Bigrams(skyrl=True), batch()
    flat = [replace(tree, outcomes=tuple(Outcome(1.0) for _ in tree.leaves)) for tree in trees]
    learner = TinkerLearner(model, loss_settings("grpo"), UNCLIPPED, total_updates=1)  # type: ignore[arg-type]
    metrics = learner.update(flat, assign_all(flat, HardCredit()))
    assert (metrics["loss"], metrics["num_tokens"], learner.updates, model.calls) == (0.0, 0.0, 1, [])


def test_the_trainers_own_log_probs_can_be_the_old_ones() -> None:
    model, (trees, credits) = Bigrams(skyrl=True), batch()
    loss = loss_settings("dapo", old="trainer", mismatch_cap=1.2)
    metrics = TinkerLearner(model, loss, UNCLIPPED, total_updates=1).update(trees, credits)  # type: ignore[arg-type]
    assert metrics["ratio/mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["mismatch/capped_frac"] > 0


@pytest.mark.parametrize("loss", [loss_settings("dapo"), loss_settings("clip")], ids=["there", "here"])
def test_numbers_that_are_none_end_the_run(loss: Any) -> None:
    model, (trees, credits) = Bigrams(skyrl=True), batch()
    with torch.no_grad():
        model.logits_VV[:, 11] = float("nan")
    with pytest.raises(DivergenceError, match="tasks t0, t1"):
        TinkerLearner(model, loss, UNCLIPPED, total_updates=1).update(trees, credits)  # type: ignore[arg-type]
    assert model.adam == {}


def test_a_lost_gradient_is_not_sent_twice() -> None:
    model, (trees, credits) = Bigrams(skyrl=True), batch()
    model.lost = LostError("lost")
    with pytest.raises(EngineDownError, match="--resume"):
        TinkerLearner(model, loss_settings("dapo"), UNCLIPPED, total_updates=1).update(trees, credits)  # type: ignore[arg-type]


class Words:
    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


def test_a_checkpoint_is_a_path_at_the_server(tmp_path: Path) -> None:
    def make(model: Bigrams) -> TinkerLearner:
        return TinkerLearner(model, loss_settings("dapo"), UNCLIPPED, total_updates=5)  # type: ignore[arg-type]

    first, second = make(Bigrams(skyrl=True)), make(model := Bigrams(skyrl=True))
    trees, credits = batch()
    first.update(trees, credits)
    first.save(tmp_path, Words())
    second.load(tmp_path)
    assert second.updates == 1
    assert model.loaded == json.loads((tmp_path / "tinker.json").read_text())["path"]

    model.lost = EngineError("gone")
    with pytest.raises(CheckpointError, match="does not give back tinker://run/weights"):
        second.load(tmp_path)
    other = make(Bigrams(skyrl=True))
    other.service.base_model = "another"
    with pytest.raises(CheckpointError, match="base_model = 'base' and this run 'another'"):
        other.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"tinker\.json is missing"):
        first.load(tmp_path / "nothing")
