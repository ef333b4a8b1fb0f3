"""The packed update is the update over plain rows: every loss with every credit family, in float64, to 1e-10.

Three computations of one gradient: over trees, over padded rows, and trajectory by trajectory with every loss written
out copy by copy. Tokens are far off-policy, so that every bound of every loss acts.
"""

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
import torch
from engine_models import tiny as tiny_of
from exact_norms import exact_norms
from forests import VOCAB, comparable, logits_of, random_tree, sampled_by

from arpo.credit import Credit, assign_all, base
from arpo.credit.settings import credit_settings
from arpo.learn.losses.base import _FAMILIES as LOSSES
from arpo.learn.settings import Aggregation, LossSettings, OptimSettings, loss_settings
from arpo.learn.update import Learner
from arpo.tree import Finish, RolloutTree

CREDITS = sorted(base._RULES)
KINDS = ("qwen3", "llama", "gemma")
SIZES = {"hidden_size": 16, "intermediate_size": 24, "initializer_range": 0.3}
BOUND = 1e-10


@functools.cache
def model_of(kind: str, seed: int = 5) -> Any:
    """Grouped queries, two layers; Qwen3 and Gemma tie their embeddings."""
    model = tiny_of(kind, VOCAB, **SIZES)
    if seed != 5:
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return exact_norms(model.double())


@functools.cache
def forest_of(kind: str, noise: float = 0.9) -> tuple[RolloutTree, ...]:
    trees = [random_tree(seed, roots=roots) for seed, roots in ((4, 2), (11, 3), (15, 2))]
    return tuple(sampled_by(tree, model_of(kind), noise, seed) for seed, tree in enumerate(trees))


@functools.cache
def credits_of(kind: str, name: str) -> list[Credit]:
    return assign_all(forest_of(kind), credit_settings(name))


@functools.cache
def learner_of(kind: str, packing: str, loss: LossSettings, micro_tokens: int = 200) -> Learner:
    """Its steps are left out, its gradients kept."""
    optim = OptimSettings(packing=packing, micro_tokens=micro_tokens, max_grad_norm=1e9)
    reference = model_of(kind, 6) if loss.kl else None
    learner = Learner(model_of(kind), loss, optim, total_updates=1, reference=reference)

    def keep(it: Any, _lr: float) -> None:
        it.kept = flat_gradient(it.weights)
        it.clear()

    learner.stepper.step = types.MethodType(keep, learner.stepper)  # type: ignore[method-assign]
    return learner


def flat_gradient(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])


@functools.cache
def updated(kind: str, packing: str, loss: LossSettings, credit: str = "soft", micro_tokens: int = 200) -> Any:
    """(gradient, metrics)."""
    learner = learner_of(kind, packing, loss, micro_tokens)
    metrics = learner.update(forest_of(kind), credits_of(kind, credit))
    return learner.stepper.kept, metrics  # type: ignore[attr-defined]


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert expected.norm() > 1e-3
    return float((got - expected).norm() / expected.norm())


@dataclass(frozen=True)
class Naive:
    """One trajectory's policy tokens, from a forward pass of its own, and the gradient of each by itself."""

    tree: int
    leaf: int
    logp_p: torch.Tensor
    jacobian_pW: torch.Tensor
    old_p: torch.Tensor
    policy_T: np.ndarray
    node_T: np.ndarray
    nodes: tuple[int, ...]


@functools.cache
def naive_rows(kind: str) -> list[Naive]:
    rows, weights = [], list(model_of(kind).parameters())
    for i, tree in enumerate(forest_of(kind)):
        for m, path in enumerate(tree.paths()):
            t = np.flatnonzero(path.policy_T)
            logp_TV = logits_of(model_of(kind), path.token_T).log_softmax(-1)
            logp_p = logp_TV[t - 1, torch.from_numpy(path.token_T[t].astype(np.int64))]
            each = [torch.autograd.grad(logp, weights, retain_graph=True) for logp in logp_p]
            jacobian_pW = torch.stack([torch.cat([g.flatten() for g in own]) for own in each])
            old_p = torch.from_numpy(path.logprob_T[t].astype(np.float64))
            rows.append(
                Naive(
                    i, m, logp_p.detach().requires_grad_(), jacobian_pW, old_p, path.policy_T, path.node_T, path.nodes
                )
            )
    return rows


def clipped(r: torch.Tensor, a: torch.Tensor, s: Any) -> torch.Tensor:
    """min(r A, clip(r) A), for A < 0 not below dual_clip * A; after `max_ratio`."""
    r = r if s.max_ratio is None else r.clamp(max=s.max_ratio)
    value = torch.minimum(r * a, r.clamp(1 - s.clip_low, 1 + s.clip_high) * a)
    return value if s.dual_clip is None else torch.where(a < 0, torch.maximum(value, s.dual_clip * a), value)


def objective(row: Naive, a: torch.Tensor, s: Any) -> torch.Tensor:
    """What a trajectory's tokens maximise, as the papers write it."""
    r = (row.logp_p - row.old_p).exp()
    if s.type == "gspo":
        mean = (row.logp_p - row.old_p).mean().exp().detach()
        return clipped(mean * row.logp_p.exp() / row.logp_p.exp().detach(), a, s)
    if s.type == "cispo":
        return r.detach().clamp(max=1 + s.clip_high) * a * row.logp_p
    if s.type == "aepo":
        held = (1 + s.clip_high) / r.detach() * r
        return torch.where(a > 0, torch.where(r.detach() > 1 + s.clip_high, held, r) * a, clipped(r, a, s))
    return clipped(r, a, s)


def naive(kind: str, loss: LossSettings, credit: str) -> tuple[float, torch.Tensor]:
    """(loss, gradient): a mean over trajectories or tokens, with no forward pass, no token and no sum shared.

    The gradient is the chain rule written out: of the loss with respect to each copy's log-prob, times that one's.
    """
    credits, terms, weights, groups = credits_of(kind, credit), [], [], []
    for row in naive_rows(kind):
        value, weight = credits[row.tree].values[row.leaf], credits[row.tree].weights[row.leaf]
        if value is None or weight is None or not row.policy_T.any() or not credits[row.tree].has_signal:
            continue
        at = np.searchsorted(row.nodes, row.node_T)
        value_T = value if credits[row.tree].per_token else value[at]
        w = torch.from_numpy(weight[at][row.policy_T])
        terms.append(w * objective(row, torch.from_numpy(value_T[row.policy_T]), loss))
        weights.append(w.sum())
        groups.append(row.tree)
    total = averaged(terms, weights, groups, loss)
    rows = naive_rows(kind)
    share = torch.autograd.grad(-total, [row.logp_p for row in rows], materialize_grads=True)
    return -float(total.detach()), sum(row.jacobian_pW.T @ own_p for row, own_p in zip(rows, share, strict=True))


def averaged(terms: list[Any], weights: list[Any], groups: list[int], loss: LossSettings) -> torch.Tensor:
    if loss.aggregation == "sequence_mean":
        return sum(t.sum() / w for t, w in zip(terms, weights, strict=True)) / len(terms)
    total = sum(t.sum() for t in terms)
    whole = {"token_mean": sum(weights), "constant": loss.length * len(terms), "group_sum": len(set(groups))}
    return total / whole[loss.aggregation]


def wide(name: str) -> LossSettings:
    """A family with its defaults, a normaliser of the trees' own size."""
    return loss_settings(name, **({"length": 16} if name == "dr_grpo" else {}))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_with_every_credit(name: str, credit: str) -> None:
    tree, padded = (updated("qwen3", packing, wide(name), credit) for packing in ("tree", "padded"))
    assert error(tree[0], padded[0]) < BOUND
    assert comparable(tree[1]) == pytest.approx(comparable(padded[1]), rel=BOUND)
    assert tree[1]["sharing"] > 2 > 1.5 > padded[1]["sharing"]


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_and_trajectory_by_trajectory(name: str, credit: str) -> None:
    got, metrics = updated("qwen3", "tree", wide(name), credit)
    loss, gradient = naive("qwen3", wide(name), credit)
    assert error(got, gradient) < BOUND
    assert metrics["loss"] == pytest.approx(loss, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize(
    ("name", "credit"),
    [*((name, "soft") for name in sorted(LOSSES)), *(("clip", name) for name in CREDITS if name != "soft")],
)
def test_on_every_architecture(kind: str, name: str, credit: str) -> None:
    tree, padded = (updated(kind, packing, wide(name), credit)[0] for packing in ("tree", "padded"))
    assert error(tree, padded) < BOUND
    assert error(tree, naive(kind, wide(name), credit)[1]) < BOUND


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("credit", ["soft", "tree", "hard"])
def test_every_average(aggregation: Any, credit: str) -> None:
    loss = loss_settings("clip", aggregation=aggregation, length=10)
    got, metrics = updated("qwen3", "tree", loss, credit)
    value, gradient = naive("qwen3", loss, credit)
    assert error(got, gradient) < BOUND
    assert metrics["loss"] == pytest.approx(value, rel=1e-9)


WHOLE = {
    "clip": loss_settings("clip", kl=0.1, entropy_bonus=0.02),
    "gspo": loss_settings("gspo", kl=0.1, clip_low=0.05, clip_high=0.05),
    "dapo": loss_settings("dapo", aggregation="group_sum", entropy_bonus=0.02),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", KINDS)
def test_neither_the_budget_nor_the_packing_changes_anything(kind: str, name: str) -> None:
    """From one trajectory per pass, over trees cut at their roots and along their branches, to one pass for all."""
    gradient, metrics = updated(kind, "padded", WHOLE[name], micro_tokens=1)
    assert metrics["passes"] == metrics["num_trajectories"]
    budgets = (1, 12, 22, 35, 60, 100, 10_000) if kind == "qwen3" else (22, 60, 10_000)
    runs = [*(("tree", n) for n in budgets), ("sequence", 40), ("sequence", 10_000)]
    for packing, micro_tokens in runs:
        got, other = updated(kind, packing, WHOLE[name], micro_tokens=micro_tokens)
        assert error(got, gradient) < BOUND
        assert comparable(other) == pytest.approx(comparable(metrics), rel=BOUND)
        assert other["passes"] == 1 or micro_tokens < 10_000


def test_the_forest_is_as_awkward_as_claimed() -> None:
    trees = forest_of("qwen3")
    segments = [s for tree in trees for s in tree.segments]
    rewards = [r for tree in trees for r in tree.rewards]
    assert {Finish.WINDOW, Finish.CALL, Finish.ERROR, Finish.LENGTH} <= {s.finish for s in segments}
    assert any(s.is_policy and len(s) == 1 for s in segments)
    assert any(s.is_policy and not len(s) for s in segments), "an answer without a token"
    assert any(not s.is_policy and not len(s) for s in segments), "an empty tool result"
    assert None in rewards
    assert {len(kids) for tree in trees for kids in tree.children} >= {0, 1, 2, 3}
    forks = [{n for n, kids in enumerate(tree.children) if len(kids) > 1} for tree in trees]
    assert any(tree.segments[n].parent in own for tree, own in zip(trees, forks, strict=True) for n in own)
    levels = [
        sum(n in own for n in tree.ancestry(leaf))
        for tree, own in zip(trees, forks, strict=True)
        for leaf in tree.leaves
    ]
    assert max(levels) >= 4


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_bound_acts(name: str) -> None:
    metrics = updated("qwen3", "tree", wide(name))[1]
    bounds = {k: v for k, v in metrics.items() if k.startswith("clip_ratio/")}
    unset = {"clip_ratio/dual"} if getattr(wide(name), "dual_clip", None) is None else set()
    assert bounds
    assert all(share > 0.01 for bound, share in bounds.items() if bound not in unset)


def test_checkpointing_computes_the_same() -> None:
    kind, loss = "qwen3", WHOLE["clip"]
    plain = updated(kind, "tree", loss, micro_tokens=60)[0]
    calls: list[int] = []
    optim = OptimSettings(micro_tokens=60, max_grad_norm=1e9, gradient_checkpointing=True)
    model = exact_norms(tiny_of(kind, VOCAB, **SIZES).double())
    learner = Learner(model, loss, optim, total_updates=1, reference=model_of(kind, 6))
    learner.stepper.step = lambda _lr: None  # type: ignore[method-assign]
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    passes = learner.update(forest_of(kind), credits_of(kind, "soft"))["passes"]
    assert len(calls) == 2 * passes, "layers are computed again"
    assert error(flat_gradient(learner.stepper.weights), plain) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_products_agree_to_their_precision(kind: str) -> None:
    """Loss and weights stay in float32; both ways are as far from the exact gradient."""
    exact = updated(kind, "padded", WHOLE["clip"])[0]
    found: dict[str, Callable[..., Any]] = {}
    for packing in ("tree", "padded"):
        model = tiny_of(kind, VOCAB, **SIZES)
        optim = OptimSettings(packing=packing, autocast="bf16", max_grad_norm=1e9)
        reference = tiny_of(kind, VOCAB, **SIZES)
        reference.load_state_dict(model_of(kind, 6).state_dict())
        learner = Learner(model, WHOLE["clip"], optim, total_updates=1, reference=reference)
        learner.stepper.step = lambda _lr: None  # type: ignore[method-assign]
        learner.update(forest_of(kind), credits_of(kind, "soft"))
        found[packing] = flat_gradient(learner.stepper.weights).double()
    off = {packing: error(gradient, exact) for packing, gradient in found.items()}
    assert 1e-5 < off["padded"] < 0.1, "bfloat16 was used"
    assert off["tree"] < 2 * off["padded"]
