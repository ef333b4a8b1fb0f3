"""Our losses against the numbers that TRL and verl computed on the same inputs (`make golden`; docs/peers.md).

Where a library chooses otherwise than we do, the test holds ours to it through the exact relation, which it states.
"""

from typing import Any

import pytest
import torch
from golden_cases import Ours, cases, gap, golden, grid, label, trees
from golden_model import formula_model

from arpo.credit import Credit
from arpo.learn.logprobs import _Picked
from arpo.learn.losses import k3
from arpo.learn.settings import LossSettings, OptimSettings, loss_settings
from arpo.learn.update import Learner

EXACT = 1e-12
"""Both sides in float64, the same formula."""
EPSILON = 3e-8
"""The library adds 1e-8 to a count of tokens."""
SINGLE = 2e-6
"""Both sides in float32, by way of a model."""

TRL_FAMILY = {"grpo": "grpo", "bnpo": "reinforce++", "dapo": "dapo", "dr_grpo": "dr_grpo", "cispo": "cispo"}
"""Ours of the same objective and the same average, which is left at its default."""
VERL_AGGREGATION = {
    "token-mean": "token_mean",
    "token-sum": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "constant",
    "seq-mean-token-sum-norm": "constant",
}


def like_trl(case: dict[str, Any]) -> LossSettings:
    """Our settings for a trainer's configuration. `delta` is our dual clip, and cispo's bound is absolute there."""
    family = TRL_FAMILY[case["loss_type"]]
    if family == "cispo":
        return loss_settings("cispo", clip_high=case["epsilon_high"] - 1, kl=case.get("beta", 0.0))
    options = {"clip_low": case["epsilon"], "clip_high": case["epsilon_high"], "dual_clip": case.get("delta")}
    options["kl"] = case.get("beta", 0.0)
    if "max_completion_length" in case:
        options["length"] = case["max_completion_length"]
    if case.get("importance_sampling_level") == "sequence":
        return loss_settings("gspo", aggregation=loss_settings(family).aggregation, **options)
    return loss_settings(family, **options)


@pytest.mark.parametrize(("fixture", "name", "case"), cases("trl", "losses"), ids=label)
def test_trl_losses_and_gradients(fixture: dict[str, Any], name: str, case: dict[str, Any]) -> None:
    inputs = fixture["inputs"]
    advantages = "token_advantages" if "per_token" in name else "row_advantages"
    ours = Ours(inputs, like_trl(case), advantages)
    loss, gradient, entropy_gradient = ours.loss, ours.gradient, ours.entropy_gradient
    if case.get("entropy_coef"):
        # TRL's bonus is a mean over tokens whatever the loss's own average; ours follows `aggregation`.
        bonus = Ours(inputs, loss_settings("dapo", entropy_bonus=case["entropy_coef"]), advantages)
        plain = Ours(inputs, loss_settings("dapo"), advantages)
        loss, entropy_gradient = loss + bonus.loss - plain.loss, bonus.entropy_gradient
    if case.get("use_bias_correction_kl"):
        extra, extra_gradient = ratio_weighted_kl(inputs, like_trl(case))
        assert gap(loss, case["loss"]) > 1e-3
        loss, gradient = loss + extra, gradient + extra_gradient
    if name == "bnpo/two_micro_batches":
        # bnpo is the mean of the micro-batches' token means, so it depends on the cut; ours never does.
        assert gap(loss, case["loss"]) > 1e-3
        halves = [Ours(inputs, like_trl(case), advantages, rows=rows) for rows in (slice(8), slice(8, None))]
        loss, gradient = sum(half.loss for half in halves) / 2, torch.cat([half.gradient for half in halves]) / 2
    assert gap(loss, case["loss"]) < EXACT
    assert gap(gradient, case["gradient"]) < EXACT
    if case.get("entropy_coef"):
        assert gap(entropy_gradient, case["entropy_gradient"]) < EXACT


def ratio_weighted_kl(inputs: dict[str, Any], settings: LossSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """kl * (r - 1) * k3 averaged as the loss is, and its gradient: what TRL's `use_bias_correction_kl` adds to ours.

    r is the token's ratio, for GSPO the trajectory's; it carries gradient.
    """
    ours = Ours(inputs, settings)
    log_ratio = ours.logp - ours.old_logp
    if settings.type == "gspo":
        log_ratio = (log_ratio * ours.mask).sum(1, keepdim=True) / ours.mask.sum(1, keepdim=True)
    term = settings.kl * (log_ratio.exp() - 1) * k3(ours.logp, grid(inputs["reference"]))
    total = (ours.coefficient_P * term[ours.mask]).sum()
    return total, torch.autograd.grad(total, ours.logp)[0]


@pytest.mark.parametrize(("fixture", "name", "case"), cases("trl", "losses"), ids=label)
def test_entropy_bonus_follows_the_aggregation(fixture: dict[str, Any], name: str, case: dict[str, Any]) -> None:
    """With a token mean the bonus is TRL's to the last digit; with a sequence mean it is not."""
    if not case.get("entropy_coef"):
        assert not grid(case["entropy_gradient"]).any()
        return
    settings = like_trl(case).model_copy(update={"entropy_bonus": case["entropy_coef"]})
    difference = gap(Ours(fixture["inputs"], settings).entropy_gradient, case["entropy_gradient"])
    assert difference < EXACT if settings.aggregation == "token_mean" else difference > 1e-2


def like_verl(case: dict[str, Any], scale_factor: int) -> LossSettings:
    """Our settings for a loss function, its bounds and its aggregation."""
    options: dict[str, Any] = {"aggregation": VERL_AGGREGATION[case["aggregation"]]}
    if case["aggregation"].startswith("seq-mean-token-sum"):
        options["length"] = scale_factor if case["aggregation"].endswith("norm") else 1
    options["clip_high"] = case["clip_ratio_high"]
    if case["mode"] == "cispo":
        return loss_settings("cispo", **options)
    options |= {"clip_low": case["clip_ratio_low"], "dual_clip": case.get("clip_ratio_c")}
    return loss_settings("gspo" if case["mode"] == "gspo" else "clip", **options)


@pytest.mark.parametrize(("fixture", "name", "case"), cases("verl", "losses"), ids=label)
def test_verl_losses_and_gradients(fixture: dict[str, Any], name: str, case: dict[str, Any]) -> None:
    inputs = fixture["inputs"]
    advantages = "token_advantages" if "per-token" in name else "row_advantages"
    ours = Ours(inputs, like_verl(case, inputs["scale_factor"]), advantages)
    # token-sum is no average; ours has none, it is the token mean times the number of tokens.
    factor = float(ours.mask.sum()) if case["aggregation"] == "token-sum" else 1.0
    tolerance = EPSILON if case["aggregation"] == "seq-mean-token-mean" else EXACT
    gradient = factor * ours.gradient
    if name.startswith("cispo_two_sided"):
        # verl bounds the weight from below as well: where r < 0.8 the gradient is ours times 0.8 / r.
        ratio = (ours.logp - ours.old_logp).exp().detach()
        assert gap(gradient, case["gradient"]) > 1e-3
        gradient = gradient * (1 - case["clip_ratio_low"]) / ratio.clamp(max=1 - case["clip_ratio_low"])
        assert gap((gradient * ours.logp).sum(), case["loss"]) < tolerance
    else:
        assert gap(factor * ours.loss, case["loss"]) < tolerance
    assert gap(gradient, case["gradient"]) < tolerance


@pytest.mark.parametrize("fixture", golden("verl"), ids=label)
def test_group_sum_is_verls_token_sum_over_groups(fixture: dict[str, Any]) -> None:
    inputs, case = fixture["inputs"], fixture["losses"]["vanilla/token-sum"]
    settings = like_verl(case, 1).model_copy(update={"aggregation": "group_sum"})
    groups = len(set(inputs["groups"]))
    assert gap(Ours(inputs, settings).loss * groups, case["loss"]) < EXACT


@pytest.mark.parametrize("fixture", golden("verl"), ids=label)
@pytest.mark.parametrize("reference", ["near", "far"])
def test_verl_k3(fixture: dict[str, Any], reference: str) -> None:
    """verl holds the estimate at 10 and lets no gradient through beyond; ours has no such bound."""
    inputs, case = fixture["inputs"], fixture["kl"][f"low_var_kl/{reference}"]
    name = "reference" if reference == "near" else "far_reference"
    mask = grid(inputs["mask"]).bool()
    per_token = k3(grid(inputs["logp"]), grid(inputs[name]))
    bounded = per_token > 10
    assert bool((bounded & mask).any()) == (reference == "far")
    assert gap(per_token.clamp(max=10), case["per_token"]) < EXACT
    ours = Ours(inputs | {"zero": grid(inputs["mask"]) * 0}, loss_settings("clip", kl=1.0), "zero", name)
    held = ((per_token - 10) * bounded * mask).sum() / mask.sum()
    assert gap(ours.loss - held, case["loss"]) < EXACT
    assert gap(ours.gradient * ~bounded, case["gradient"]) < EXACT


@pytest.mark.parametrize("fixture", golden("verl"), ids=label)
def test_verl_log_probs_and_entropy_from_logits(fixture: dict[str, Any]) -> None:
    """Our fused log-softmax and entropy, forward and backward."""
    inputs, case = fixture["inputs"], fixture["entropy"]
    logits = grid(inputs["logits"]).flatten(0, 1).requires_grad_()
    labels = torch.tensor(case["labels"]).flatten()
    logp, entropy = _Picked.apply(logits, torch.arange(len(logits)), labels, True)
    mask = grid(inputs["mask"]).flatten()
    mean = (entropy * mask).sum() / mask.sum()
    assert gap(logp, grid(case["logp"]).flatten()) < EXACT
    assert gap(entropy, grid(case["per_token"]).flatten()) < EXACT
    assert gap(mean, case["mean"]) < EXACT
    assert gap(torch.autograd.grad(mean, logits)[0], grid(case["gradient"]).flatten(0, 1)) < EXACT


def learner(settings: LossSettings, packing: str, kept: dict[str, torch.Tensor]) -> Learner:
    """A learner on the formula model that leaves its gradient in `kept` in place of a step."""
    optim = OptimSettings(packing=packing, max_grad_norm=1e9)
    reference = formula_model(phase=0.25) if settings.kl else None
    made = Learner(formula_model(phase=0.0), settings, optim, total_updates=1, reference=reference)
    made.stepper.step = lambda lr: kept.update({n: p.grad.clone() for n, p in made.model.named_parameters()})
    return made


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize(("fixture", "name", "case"), cases("trl", "model"), ids=label)
def test_learner_against_trl_trainer(fixture: dict[str, Any], name: str, case: dict[str, Any], packing: str) -> None:
    """The whole way from token ids to the gradient of every parameter of a model."""
    inputs, groups = fixture["inputs"], fixture["inputs"]["groups"]
    batch = trees(inputs, groups, grid(case["old_logp"]), inputs["prompts"], inputs["completions"])
    advantages = iter(case["advantages"])
    credits = [credit_of(tree, [next(advantages) for _ in tree.leaves]) for tree in batch]
    settings, kept = like_trl(case), {}
    update = learner(settings, packing, kept).update(batch, credits)
    share = counted_share(settings, inputs, case)
    # Terms of order 1 in float32, some of which cancel almost: the value is good to so many places, not digits.
    assert update["loss"] * share == pytest.approx(case["loss"], abs=SINGLE / 2)
    assert update["grad_norm"] * share == pytest.approx(case["gradient_norm"], rel=SINGLE)
    for parameter, norm in case["gradient_norms"].items():
        assert float(kept[parameter].norm()) * share == pytest.approx(norm, rel=5 * SINGLE), parameter


def credit_of(tree: Any, advantages: list[float]) -> Credit:
    """TRL's own advantages on the policy's nodes."""
    policy = [grid([tree.segments[n].is_policy for n in tree.ancestry(leaf)]).numpy() for leaf in tree.leaves]
    return Credit(tuple(a * own for a, own in zip(advantages, policy, strict=True)), tuple(policy))


def counted_share(settings: LossSettings, inputs: dict[str, Any], case: dict[str, Any]) -> float:
    """A group of equal rewards counts in TRL's denominators and not in ours, unless a KL term acts on it."""
    if settings.kl:
        return 1.0
    has_signal = torch.tensor(case["advantages"]) != 0
    count = grid(inputs["mask"]).sum(1) if settings.aggregation == "token_mean" else torch.ones(len(has_signal))
    return float(count[has_signal].sum() / count.sum())


@pytest.mark.parametrize("fixture", golden("trl"), ids=label)
def test_learner_log_probs_against_trl(fixture: dict[str, Any]) -> None:
    inputs, case = fixture["inputs"], fixture["model"]["grpo"]
    mask = grid(inputs["mask"]).bool()
    batch = trees(inputs, inputs["groups"], grid(case["logp"]), inputs["prompts"], inputs["completions"])
    found = learner(loss_settings("grpo"), "tree", {}).logprobs(batch)
    policy = [torch.from_numpy(logp_N)[torch.from_numpy(logp_N) != 0] for logp_N in found]
    assert gap(torch.cat(policy), grid(case["logp"])[mask]) < SINGLE
