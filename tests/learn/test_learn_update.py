"""The learner: against a naive computation, what it reports, when it stops, and how it resumes."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from exact_norms import exact_norms
from forests import comparable, logits_of
from transformers import BioGptConfig, BioGptForCausalLM, OPTConfig, OPTForCausalLM

from arpo.credit import Credit, assign
from arpo.credit.settings import credit_settings
from arpo.learn.settings import ClipLoss, LossSettings, OptimSettings
from arpo.learn.update import Learner
from arpo.tree import RolloutTree

Maker = Callable[..., Any]


def credits_of(trees: Sequence[RolloutTree], **settings: Any) -> list[Credit]:
    return [assign(tree, credit_settings(**settings)) for tree in trees]


def learner(model: Any, loss: LossSettings | None = None, total: int = 10, **optim: Any) -> Learner:
    reference = optim.pop("reference", None)
    temperature = optim.pop("temperature", 1.0)
    settings = OptimSettings(**{"lr": 0.01, "max_grad_norm": 1e9} | optim)
    return Learner(
        model, loss or ClipLoss(), settings, total_updates=total, temperature=temperature, reference=reference
    )


def gradient(model: Any, trees: Sequence[RolloutTree], credits: Sequence[Credit], **kwargs: Any) -> torch.Tensor:
    """The gradient of the update, as one vector."""
    caught: list[torch.Tensor] = []
    it = learner(model, **kwargs)
    it.stepper.step = lambda _lr: caught.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    it.update(trees, credits)
    it.stepper.clear()
    return caught[0]


def flat(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def naive_loss(model: Any, trees: Sequence[RolloutTree], credits: Sequence[Credit], sequence_mean: bool) -> Any:
    """One trajectory at a time, all logits, no batching, no trimming."""
    means, total, weight = [], 0.0, 0.0
    for tree, credit in zip(trees, credits, strict=True):
        for path, values, weights in zip(tree.paths(), credit.values, credit.weights, strict=True):
            logp = model(input_ids=torch.from_numpy(path.token_T[None].astype(np.int64))).logits[0].log_softmax(-1)
            own_total, own_weight = 0.0, 0.0
            for t in np.flatnonzero(path.policy_T):
                place = path.nodes.index(path.node_T[t])
                a, w = values[place], weights[place]
                r = (logp[t - 1, path.token_T[t]] - float(path.logprob_T[t])).exp()
                objective = torch.minimum(r * a, r.clamp(0.8, 1.2) * a)
                objective = objective.clamp(min=3 * a) if a < 0 else objective
                own_total, own_weight = own_total - w * objective, own_weight + w
            means.append(own_total / own_weight)
            total, weight = total + own_total, weight + own_weight
    return sum(means) / len(means) if sequence_mean else total / weight


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.4, -0.4])
def test_loss_and_gradient_are_the_naive_ones(
    tiny: Maker, forked: Maker, aggregation: str, average: bool, shift: float
) -> None:
    model = exact_norms(tiny(dtype=torch.float64))
    trees = [forked((1.0, 0.0, 0.3), model, seed=seed, shift=shift) for seed in (1, 2)]
    credits = credits_of(trees, type="soft", shared_prefix_average=average)
    loss = naive_loss(model, trees, credits, aggregation == "sequence_mean")
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    settings = ClipLoss(aggregation=aggregation)
    got = gradient(model, trees, credits, loss=settings, micro_tokens=20)
    assert (got - expected).norm() < 1e-12 * expected.norm()
    assert learner(model, settings).update(trees, credits)["loss"] == pytest.approx(loss.item(), abs=1e-12)


@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_regularisers_are_the_naive_ones(tiny: Maker, forked: Maker, packing: str) -> None:
    """kl * k3(policy, reference) - entropy_bonus * H, averaged over every token of every trajectory."""
    model, reference = (exact_norms(tiny(seed, torch.float64)) for seed in (0, 5))
    trees = [forked((1.0, 0.0, 0.3), model, seed=seed, shift=0.1) for seed in (1, 2)]
    total, tokens = torch.tensor(0.0, dtype=torch.float64), 0
    for path in [path for tree in trees for path in tree.paths()]:
        t = np.flatnonzero(path.policy_T)
        own, other = (logits_of(m, path.token_T).log_softmax(-1)[t - 1] for m in (model, reference))
        gap = (other.detach() - own)[torch.arange(len(t)), torch.from_numpy(path.token_T[t].astype(np.int64))]
        total = total + 0.3 * (gap.exp() - gap - 1).sum() + 0.05 * (own.exp() * own).sum()
        tokens += len(t)
    plain = naive_loss(model, trees, credits_of(trees), sequence_mean=False)
    loss = plain + total / tokens
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    settings = ClipLoss(kl=0.3, entropy_bonus=0.05)
    options: dict[str, Any] = {"loss": settings, "reference": reference, "packing": packing}
    assert (gradient(model, trees, credits_of(trees), **options) - expected).norm() < 1e-12 * expected.norm()
    metrics = learner(model, **options).update(trees, credits_of(trees))
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-12)
    assert abs(loss.item() - plain.item()) > 0.01


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_the_result_does_not_depend_on_the_micro_batch_size(
    tiny: Maker, forked: Maker, aggregation: str, packing: str
) -> None:
    model = exact_norms(tiny(dtype=torch.float64))
    trees = [forked((1.0, 0.0, 0.3), model, seed=seed, shift=0.1) for seed in (1, 2, 3)]
    settings = ClipLoss(aggregation=aggregation, kl=0.1, entropy_bonus=0.01)
    runs, vectors = [], []
    for micro_tokens in (1, 20, 27, 10_000):
        options: dict[str, Any] = {"micro_tokens": micro_tokens, "packing": packing}
        options["reference"] = exact_norms(tiny(5, torch.float64))
        vectors.append(gradient(model, trees, credits_of(trees), loss=settings, **options))
        runs.append(learner(copy.deepcopy(model), settings, **options).update(trees, credits_of(trees)))
    passes = [run["passes"] for run in runs]
    assert passes == sorted(passes, reverse=True)
    assert (passes[0], passes[-1], len(set(passes))) == (9, 1, 4 if packing == "tree" else 3)
    for vector, metrics in zip(vectors[1:], runs[1:], strict=True):
        assert (vector - vectors[0]).norm() < 1e-12 * vectors[0].norm()
        assert comparable(metrics) == pytest.approx(comparable(runs[0]), rel=1e-12)


def test_what_is_reported_of_the_passes(tiny: Maker, forked: Maker) -> None:
    """Trajectories of 12, 14 and 12 tokens; the tree's states are 3 + 4 + 2 + (2 + 4) + 8, those of rows 11, 13, 11."""
    model, tree = tiny(), forked()
    for packing, micro_tokens, computed, passes in [
        ("tree", 100, 23, 1),
        ("tree", 22, 26, 2),
        ("sequence", 100, 35, 1),
        ("padded", 100, 39, 1),
        ("padded", 26, 37, 2),
    ]:
        metrics = learner(copy.deepcopy(model), packing=packing, micro_tokens=micro_tokens).update(
            [tree], credits_of([tree])
        )
        assert (metrics["computed_tokens"], metrics["passes"]) == (computed, passes)
        assert metrics["sharing"] == pytest.approx(38 / computed)
        assert (metrics["num_tokens"], metrics["num_trajectories"], metrics["num_groups"]) == (25, 3, 1)


def test_soft_and_hard_have_equal_gradients_at_ratio_one_and_not_off_policy(tiny: Maker, forked: Maker) -> None:
    model = tiny(dtype=torch.float64)
    for shift, equal in ((0.0, True), (-0.3, False)):
        trees = [forked((1.0, 0.0, 0.3), model, seed=1, shift=shift)]
        soft, hard = (gradient(model, trees, credits_of(trees, type=name)) for name in ("soft", "hard"))
        # the tree carries float32 log-probs, so the ratio is 1 to 1e-7 and the gradients agree to that
        assert torch.allclose(soft, hard, rtol=1e-5, atol=1e-7) is equal


@pytest.mark.parametrize(("packing", "states"), [("tree", 19), ("padded", 7 + 9 + 9)])
def test_only_states_that_predict_reach_the_head(tiny: Maker, forked: Maker, packing: str, states: int) -> None:
    """Of 4 + 3 + 5 + 9 sampled tokens, two pairs begin at one state; rows hold the shared 4 twice."""
    model = tiny()
    it, tree = learner(model, packing=packing), forked(model=model)
    seen: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _m, args, _out: seen.append(args[0].shape[0]))
    it.update([tree], credits_of([tree]))
    assert sum(seen) == states


def test_ratio_is_one_at_the_sampling_temperature(tiny: Maker, forked: Maker) -> None:
    model = tiny(dtype=torch.float64)
    tree = forked(model=model)
    again = learner(copy.deepcopy(model)).update([tree], credits_of([tree]))
    assert again["ratio/mean"] == pytest.approx(1.0, abs=1e-6)
    assert again["kl/sampler"] == pytest.approx(0.0, abs=1e-10)
    with torch.no_grad():  # the tied embedding is the head: logits double, and temperature 2 halves them again
        model.get_output_embeddings().weight.mul_(2)
        model.get_input_embeddings().weight = torch.nn.Parameter(model.get_input_embeddings().weight / 2)
    assert learner(model, temperature=2.0).update([tree], credits_of([tree]))["ratio/mean"] == pytest.approx(1.0)


def test_training_raises_the_probability_of_what_was_rewarded(tiny: Maker, forked: Maker) -> None:
    model = tiny()
    tree = forked((1.0, 0.0, 0.0), model)
    before = [p.logprob_T.sum() for p in tree.paths()]
    it = learner(model, lr=0.003)
    for _ in range(5):
        it.update([tree], credits_of([tree]))
    after = [p.logprob_T.sum() for p in forked((1.0, 0.0, 0.0), model).paths()]
    assert after[0] > before[0] + 0.1
    assert after[2] < before[2] - 0.1


def test_kl_acts_on_groups_without_variance(tiny: Maker, forked: Maker) -> None:
    model, tree = tiny(), forked((0.5, 0.5, 0.5))
    it = learner(model, ClipLoss(kl=1.0), reference=tiny(7), lr=0.003)
    first = it.update([tree], credits_of([tree]))["kl"]
    for _ in range(5):
        last = it.update([tree], credits_of([tree]))["kl"]
    assert 0 < last < 0.8 * first


def test_the_reference_stays_what_it_was(tiny: Maker, forked: Maker) -> None:
    model, reference, tree = tiny(), tiny(7), forked()
    before = flat(reference)
    learner(model, ClipLoss(kl=1.0), reference=reference).update([tree], credits_of([tree]))
    assert torch.equal(flat(reference), before)
    assert all(p.grad is None for p in reference.parameters())


def test_kl_needs_a_reference(tiny: Maker) -> None:
    with pytest.raises(ValueError, match="give the learner a reference model"):
        learner(tiny(), ClipLoss(kl=0.1))


def test_gradient_clipping_bounds_the_norm_and_reports_the_raw_one(tiny: Maker, forked: Maker) -> None:
    model = tiny(dtype=torch.float64)
    trees = [forked(model=model)]
    raw = gradient(model, trees, credits_of(trees))
    clipped = gradient(model, trees, credits_of(trees), max_grad_norm=0.01)
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), raw / raw.norm())
    metrics = learner(model, max_grad_norm=0.01).update(trees, credits_of(trees))
    assert metrics["grad_norm"] == pytest.approx(raw.norm().item())


def test_gradient_checkpointing_changes_nothing(tiny: Maker, forked: Maker) -> None:
    model = exact_norms(tiny(dtype=torch.float64))
    trees = [forked(model=model)]
    plain = gradient(model, trees, credits_of(trees))
    saved = gradient(model, trees, credits_of(trees), gradient_checkpointing=True)
    torch.testing.assert_close(saved, plain, rtol=1e-12, atol=1e-15)
    assert not model.training


def dropping(kind: str) -> Any:
    """Architectures that keep a rate in a layer of its own, as numbers in their layers, or in both."""
    sizes = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    if kind == "opt":
        config = OPTConfig(
            **sizes, ffn_dim=24, word_embed_proj_dim=16, dropout=0.3, attention_dropout=0.2, layerdrop=0.3
        )
        return OPTForCausalLM(config).double().eval()
    rates = {
        "hidden_dropout_prob": 0.3,
        "attention_probs_dropout_prob": 0.2,
        "activation_dropout": 0.2,
        "layerdrop": 0.3,
    }
    return BioGptForCausalLM(BioGptConfig(**sizes, intermediate_size=24, **rates)).double().eval()


@pytest.mark.parametrize("kind", ["opt", "biogpt"])
def test_checkpointing_needs_training_mode_and_drops_nothing(forked: Maker, kind: str) -> None:
    model = dropping(kind)
    trees = [forked(model=model, shift=0.1)]
    plain = gradient(model, trees, credits_of(trees))
    for packing in ("tree", "padded"):
        saved = gradient(model, trees, credits_of(trees), gradient_checkpointing=True, packing=packing)
        torch.testing.assert_close(saved, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_learner_continues_to_the_bit(tiny: Maker, forked: Maker, tmp_path: Any, dtype: torch.dtype) -> None:
    trees = [forked(seed=seed) for seed in range(3)]
    options: dict[str, Any] = {"schedule": "cosine", "warmup_steps": 2, "total": 6}
    straight = learner(tiny(dtype=dtype), **options)
    first = learner(tiny(dtype=dtype), **options)
    for it in (straight, first):
        for tree in trees[:2]:
            it.update([tree], credits_of([tree]))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = learner(tiny(seed=3, dtype=dtype), **options)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for it in (straight, second):
        it.update([trees[2]], credits_of([trees[2]]))
    assert torch.equal(flat(straight.model), flat(second.model))
    assert straight.updates == second.updates == 3


def test_half_precision_weights_keep_steps_smaller_than_their_last_bit(tiny: Maker, forked: Maker) -> None:
    model, tree = tiny(dtype=torch.bfloat16), forked()
    it = learner(model, lr=1e-5)
    weight = model.model.layers[0].mlp.up_proj.weight
    start = weight.detach().float().clone()
    for _ in range(40):
        it.update([tree], credits_of([tree]))
    master = next(m for w, m in zip(it.stepper.weights, it.stepper.masters, strict=True) if w is weight)
    assert (master - start).abs().median() > 1e-4  # forty steps of about 1e-5 have added up
    assert torch.equal(weight, master.to(torch.bfloat16))
    assert not torch.equal(weight.float(), start)


def test_state_of_another_precision_is_refused(tiny: Maker) -> None:
    state = learner(tiny(dtype=torch.bfloat16)).state_dict()
    with pytest.raises(ValueError, match="another precision"):
        learner(tiny()).load_state_dict(state)


GOLDEN = {
    "loss": 0.1899064660683648,
    "grad_norm": 1.2953485529163105,
    "entropy": 1.7615162851379034,
    "ratio/mean": 0.454899416896996,
    "kl/sampler": 5.3266617257679485,
    "clip_ratio/high": 2 / 41,
}


def test_golden_figures(tiny: Maker, forked: Maker) -> None:
    """A model and trees made without random numbers of torch: the figures hold on every machine."""
    model = tiny(dtype=torch.float64)
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (0.7 + 0.1 * n)).reshape(p.shape))
    trees = [forked((1.0, 0.0, 0.3), seed=1), forked((0.0, 1.0, None), seed=2)]
    metrics = learner(model).update(trees, credits_of(trees, type="hard"))
    assert {name: metrics[name] for name in GOLDEN} == pytest.approx(GOLDEN, rel=1e-6)
