"""Log-probs: the picked head against full forward passes, and whose log-probs count as the old policy's."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from exact_norms import exact_norms
from forests import VOCAB, logits_of, random_tree, sampled_by
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3ForCausalLM,
)

from arpo.credit import assign
from arpo.credit.settings import credit_settings
from arpo.errors import ConfigError
from arpo.learn import logprobs
from arpo.learn.logprobs import PolicyHead
from arpo.learn.packing import Pack, packs
from arpo.learn.rows import all_rows, flatten, rows_of
from arpo.learn.settings import ClipLoss, OptimSettings
from arpo.learn.update import DivergenceError, Learner

Maker = Callable[..., Any]
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, final_logit_softcapping=5.0, attn_logit_softcapping=None)
    ),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)),
}


def picked(seed: int = 0, packing: str = "padded") -> Pack:
    """Two random trees in one pack."""
    flats = [flatten(random_tree(seed + i)) for i in (10, 15)]
    rows = [row for i, flat in enumerate(flats) for row in all_rows(i, flat)]
    limits: Any = {"budget": 10_000, "packing": packing}
    (pack,) = packs(flats, rows, [row.weight_p for row in rows], [flat.logp_N for flat in flats], **limits)
    return pack


def check(model: Any, temperature: float, tolerance: float, packing: str = "padded") -> None:
    """Against all logits of every trajectory by itself."""
    pack = picked(packing=packing)
    head = PolicyHead(model, temperature, form=None if packing == "padded" else "chains")
    with head.attention():
        logp_U, entropy_U = head(pack)
    seen = 0
    for tree, seed in enumerate((10, 15)):
        flat = flatten(random_tree(seed))
        for path in flat.tree.paths():
            full = (logits_of(model, path.token_T).float() / temperature).log_softmax(-1)
            for t in np.flatnonzero(path.policy_T):
                place = int(flat.start_S[path.node_T[t]]) + int(path.offset_T[t])
                for u in torch.nonzero((pack.tree_U == tree) & (pack.place_U == place)).flatten().tolist():
                    own = full[t - 1]
                    expected = torch.stack([own[path.token_T[t]], -(own.exp() * own).sum()])
                    got = torch.stack([logp_U[u], entropy_U[u]]).float()
                    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
                    seen += 1
    assert seen >= len(pack.label_U)


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, packing: str) -> None:
    """GPT-2 has learned positions; the others scale or cap their logits after the head."""
    torch.manual_seed(0)
    check(FAMILIES[family]().eval(), 0.7, 1e-4, packing)


def test_bfloat16(tiny: Maker) -> None:
    check(tiny(dtype=torch.bfloat16, vocab=VOCAB), 1.0, 0.1)


def test_an_unknown_scaling_is_an_error_at_start_up(tiny: Maker) -> None:
    class Louder(Qwen3ForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 1.1
            return out

    with pytest.raises(ConfigError, match="Louder: its logits are not its output embedding"):
        PolicyHead(Louder(tiny().config).eval())


def test_not_a_transformers_model() -> None:
    with pytest.raises(ConfigError, match="Linear is not a transformers model"):
        PolicyHead(torch.nn.Linear(2, 2))


def test_greedy_sampling_cannot_be_trained_on(tiny: Maker) -> None:
    with pytest.raises(ConfigError, match=r"rollout.temperature = 0"):
        PolicyHead(tiny(), 0.0)


@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_slices_of_the_head_change_nothing(tiny: Maker, monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    """With trees a slice may begin and end at states that predict several labels."""
    model, pack = tiny(dtype=torch.float64, vocab=VOCAB), picked(packing=packing)
    assert packing == "padded" or len(pack.state_S) < len(pack.label_U)
    results = []
    for states in (10_000, 4, 1):
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", states * VOCAB)
        head = PolicyHead(model, form="chains" if packing == "tree" else None, entropy_gradient=True)
        calls: list[int] = []
        hook = model.get_output_embeddings().register_forward_hook(lambda _m, x, _y, own=calls: own.append(len(x[0])))
        with head.attention():
            logp_U, entropy_U = head(pack)
            model.zero_grad()
            (logp_U.sum() + 0.3 * entropy_U.sum()).backward()
        hook.remove()
        assert max(calls) <= states
        results.append((logp_U, entropy_U, *[p.grad.clone() for p in model.parameters()]))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=1e-12, atol=1e-12)


def test_the_picked_gradient_is_that_of_log_softmax() -> None:
    """Of log-probs and entropies together, with a state that predicts three labels and one that predicts none."""
    torch.manual_seed(0)
    logit_SV = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    head_U, label_U = torch.tensor([0, 0, 0, 2, 3]), torch.tensor([6, 1, 1, 0, 4])

    def ours(logit: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logprobs._Picked.apply(logit, head_U, label_U, True)

    logp_SV = logit_SV.log_softmax(-1)
    expected = (logp_SV[head_U, label_U], -(logp_SV.exp() * logp_SV).sum(-1))
    torch.testing.assert_close(ours(logit_SV), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(ours, (logit_SV,))


def test_entropy_carries_a_gradient_only_on_demand(tiny: Maker) -> None:
    model = tiny(vocab=VOCAB)
    assert not PolicyHead(model)(picked())[1].requires_grad
    assert PolicyHead(model, entropy_gradient=True)(picked())[1].requires_grad


def test_a_trunk_that_leaves_the_tree_is_an_error_at_start_up(tiny: Maker) -> None:
    """A layer that looks at the token before it on the line, whatever branch that is of."""

    class Shifted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.5 * torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]

    model = tiny()
    model.model.layers[0].mlp = Shifted()
    PolicyHead(model)
    with pytest.raises(ConfigError, match=r'Qwen3ForCausalLM: on a tree its layers .* set optim.packing = "padded"'):
        PolicyHead(model, form="chains")


def learner(model: Any, loss: Any = None, **options: Any) -> Learner:
    optim = OptimSettings(**{"lr": 0.01, "max_grad_norm": 1e9} | options.pop("optim", {}))
    return Learner(model, loss or ClipLoss(old="trainer"), optim, total_updates=9, **options)


@pytest.mark.parametrize(("packing", "micro_tokens"), [("tree", 1000), ("tree", 12), ("sequence", 50), ("padded", 50)])
def test_the_trainers_log_probs_are_the_samplers_where_both_are_one_model(
    tiny: Maker, packing: str, micro_tokens: int
) -> None:
    """Every sampled token of every trajectory, without a reward too; 0 elsewhere."""
    model = exact_norms(tiny(dtype=torch.float64, vocab=VOCAB))
    trees = [sampled_by(random_tree(seed), model, temperature=0.7) for seed in (10, 15)]
    it = learner(model, temperature=0.7, optim={"packing": packing, "micro_tokens": micro_tokens})
    for tree, logp_N in zip(trees, it.logprobs(trees), strict=True):
        assert logp_N.dtype == np.float32
        assert np.abs(flatten(tree).logp_N).max() > 1
        np.testing.assert_allclose(logp_N, flatten(tree).logp_N, rtol=0, atol=1e-6)
    assert it.logprobs([]) == []


def test_reference_log_probs_and_the_divergence_from_it(tiny: Maker) -> None:
    model, other = (exact_norms(tiny(seed, torch.float64, VOCAB)) for seed in (0, 5))
    tree = sampled_by(random_tree(15), model)
    flat, theirs = flatten(tree), flatten(sampled_by(tree, other))
    it = learner(model, ClipLoss(kl=0.1), reference=other)
    np.testing.assert_allclose(it.logprobs([tree], reference=True)[0], theirs.logp_N, rtol=0, atol=1e-6)
    for old, own_N in ((None, flat.logp_N), ([flat.logp_N - 1], flat.logp_N - 1)):
        pieces = it.divergence([tree], old)[0]
        assert [len(piece) for piece in pieces] == [len(s) if s.is_policy else 0 for s in tree.segments]
        wanted = np.concatenate(
            [
                p
                for p, s in zip(np.split(own_N - theirs.logp_N, flat.start_S[1:]), tree.segments, strict=True)
                if s.is_policy
            ]
        )
        np.testing.assert_allclose(np.concatenate(pieces), wanted, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="there is no reference model"):
        learner(model).logprobs([tree], reference=True)


def test_log_probs_that_are_not_finite_name_their_tasks(tiny: Maker) -> None:
    model = tiny(vocab=VOCAB)
    it = learner(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = torch.nan
    trees = [random_tree(seed) for seed in (10, 15)]
    message = r"update 1: the log-probability of a token is not finite \(tasks forest-10, forest-15\)"
    with pytest.raises(DivergenceError, match=message):
        it.logprobs(trees)


def off_policy(model: Any) -> list[Any]:
    return [sampled_by(random_tree(seed), model, noise=0.5, seed=seed) for seed in (4, 15)]


def test_with_the_trainers_log_probs_the_first_ratio_is_one(tiny: Maker) -> None:
    model = exact_norms(tiny(dtype=torch.float64, vocab=VOCAB))
    trees = off_policy(model)
    credits = [assign(tree, credit_settings()) for tree in trees]
    sampler = learner(copy.deepcopy(model), ClipLoss()).update(trees, credits)
    trainer = learner(copy.deepcopy(model)).update(trees, credits)
    assert sampler["ratio/mean"] > 1.02
    assert trainer["ratio/mean"] == pytest.approx(1, abs=1e-6)
    assert trainer["kl/trainer"] == pytest.approx(0, abs=1e-10)
    assert trainer["clip_ratio/high"] == trainer["clip_ratio/low"] == 0


def test_later_mini_batches_keep_the_log_probs_from_before_the_first_step(tiny: Maker) -> None:
    """The ratio of the second is the policy after one step to the policy before it."""
    model = exact_norms(tiny(dtype=torch.float64, vocab=VOCAB))
    trees = off_policy(model)
    credits = [assign(tree, credit_settings()) for tree in trees]
    it = learner(model)
    old = it.logprobs(trees)
    assert it.update(trees[:1], credits[:1], old[:1])["ratio/mean"] == pytest.approx(1, abs=1e-6)
    now = it.logprobs(trees[1:])[0]
    metrics = it.update(trees[1:], credits[1:], old[1:])
    flat = flatten(trees[1])
    rows = rows_of(0, flat, credits[1])
    ratio = np.concatenate([np.exp(now.astype(np.float64) - old[1])[row.place_p] for row in rows])
    assert abs(ratio.mean() - 1) > 1e-3
    assert metrics["ratio/mean"] == pytest.approx(ratio.mean(), rel=1e-5)


@pytest.mark.parametrize(("cap", "reject"), [(None, None), (1.3, None), (None, 0.15), (1.3, 0.15), (None, 1e-9)])
def test_mismatch_is_corrected_as_documented(tiny: Maker, cap: float | None, reject: float | None) -> None:
    """Weights min(rho, C) on the advantages, trajectories of large mean rho - ln rho - 1 dropped: by hand."""
    model = exact_norms(tiny(dtype=torch.float64, vocab=VOCAB))
    trees = off_policy(model)
    credits = [assign(tree, credit_settings()) for tree in trees]
    total, tokens, kept, terms, rhos = 0.0, 0, [], [], []
    for tree, credit in zip(trees, credits, strict=True):
        own = sampled_by(tree, model)
        for path, truth, value in zip(tree.paths(), own.paths(), credit.values, strict=True):
            if value is None or not path.policy_T.any():
                continue
            gap = truth.logprob_T[path.policy_T].astype(np.float64) - path.logprob_T[path.policy_T]
            terms.append(np.exp(gap) - gap - 1)
            rhos.append(np.exp(gap))
            kept.append(reject is None or terms[-1].mean() <= reject)
            if kept[-1]:
                w = np.ones(len(gap)) if cap is None else np.minimum(np.exp(gap), cap)
                a = value[np.searchsorted(path.nodes, path.node_T)][path.policy_T]
                total, tokens = total - (w * a).sum(), tokens + len(gap)  # the ratio is 1
    assert reject != 0.15 or 0 < sum(kept) < len(kept)
    metrics = learner(model, ClipLoss(old="trainer", mismatch_cap=cap, mismatch_reject=reject)).update(trees, credits)
    assert metrics["num_tokens"] == tokens
    assert metrics["loss"] == pytest.approx(total / tokens if tokens else 0.0, rel=1e-5)
    assert metrics["mismatch/rejected_frac"] == pytest.approx(1 - np.mean(kept))
    assert metrics["mismatch/kl"] == pytest.approx(np.concatenate(terms).mean(), rel=1e-4)
    assert metrics["mismatch/ratio_max"] == pytest.approx(np.concatenate(rhos).max(), rel=1e-4)
    capped = 0.0 if cap is None else (np.concatenate(rhos) > cap).mean()
    assert metrics["mismatch/capped_frac"] == pytest.approx(capped)
    assert (metrics["passes"] == 0) == (not tokens)
