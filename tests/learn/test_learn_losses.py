"""Every loss by hand on both sides of its bounds; unique tokens against copies; averaging; KL; extremes."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from arpo.errors import ConfigError
from arpo.learn.losses import (
    LOG_RATIO_LIMIT,
    Copies,
    TokenInputs,
    coefficients,
    diagnostics,
    k3,
    log_ratio,
    loss_terms,
)
from arpo.learn.settings import LossSettings, loss_settings

CLIPPED = ("clip", "grpo", "dapo", "dr_grpo", "reinforce++")
TOKEN_LEVEL = (*CLIPPED, "cispo", "aepo")
FAMILIES = (*TOKEN_LEVEL, "gspo")
F64 = torch.float64


def pack(
    logp: torch.Tensor,
    old: torch.Tensor,
    rows: list[list[int]],
    advantages: list[list[float]],
    weights: list[list[float]] | None = None,
    **more: torch.Tensor,
) -> TokenInputs:
    """`rows`: the unique tokens of each trajectory; per copy its advantage and coefficient (1 unless given)."""
    index = torch.tensor([u for row in rows for u in row])
    advantage = torch.tensor([a for row in advantages for a in row], dtype=logp.dtype)
    coefficient = torch.ones_like(advantage)
    if weights is not None:
        coefficient = torch.tensor([w for row in weights for w in row], dtype=logp.dtype)
    row = torch.tensor([r for r, row in enumerate(rows) for _ in row])

    def summed(value: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(logp), dtype=logp.dtype).index_add(0, index, value)

    return TokenInputs(
        logp,
        old,
        more.get("entropy", torch.zeros_like(old)),
        more.get("reference"),
        summed(coefficient * advantage.clamp(min=0)),
        summed(coefficient * advantage.clamp(max=0)),
        summed(coefficient),
        Copies(index, row, advantage, coefficient, len(rows)),
    )


def loss_and_slope(ratio: float, advantage: float, settings: LossSettings) -> tuple[float, float]:
    """(loss, d loss / d ln policy) of a trajectory of one token with old log-prob -2."""
    old = torch.tensor([-2.0], dtype=F64)
    logp = (old + math.log(ratio)).requires_grad_()
    loss = loss_terms(pack(logp, old, [[0]], [[advantage]]), settings).sum()
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.item()


def check(name: str, cases: list[tuple[float, float, float, float]], **options: Any) -> None:
    for ratio, advantage, loss, slope in cases:
        got = loss_and_slope(ratio, advantage, loss_settings(name, **options))
        assert got == pytest.approx((loss, slope), abs=1e-12), (name, ratio, advantage)


def test_clip_with_dual_clip() -> None:
    """(r, A, loss, derivative with respect to ln policy: that by r, times r)."""
    cases = [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.3, 2.0, -2.4, 0.0),  # above 1 + 0.2: clipped, no gradient
        (0.5, 2.0, -1.0, -1.0),  # a positive advantage is never clipped from below
        (1.0, -2.0, 2.0, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # below 1 - 0.2: clipped
        (1.3, -2.0, 2.6, 2.6),  # a negative advantage is not clipped from above ...
        (2.9, -2.0, 5.8, 5.8),
        (3.5, -2.0, 6.0, 0.0),  # ... until the dual clip at 3
        (1.3, 0.0, 0.0, 0.0),
    ]
    check("clip", cases)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "reinforce++"])
def test_the_relatives_clip_at_a_fifth_and_have_no_dual_clip(name: str) -> None:
    check(name, [(1.19, 1.0, -1.19, -1.19), (1.21, 1.0, -1.2, 0.0), (0.79, -1.0, 0.8, 0.0), (50.0, -1.0, 50.0, 50.0)])


def test_dapo_leaves_more_room_above() -> None:
    check("dapo", [(1.27, 1.0, -1.27, -1.27), (1.29, 1.0, -1.28, 0.0), (0.81, -1.0, 0.81, 0.81), (0.79, -1.0, 0.8, 0)])


def test_gspo_clips_in_ten_thousandths() -> None:
    check(
        "gspo",
        [
            (1.0003, 1.0, -1.0003, -1.0003),
            (1.0005, 1.0, -1.0004, 0.0),
            (0.9, 1.0, -0.9, -0.9),
            (0.9998, -1.0, 0.9998, 0.9998),
            (0.9996, -1.0, 0.9997, 0.0),
            (1.5, -1.0, 1.5, 1.5),
        ],
    )
    check("gspo", [(1.5, -1.0, 1.4, 0.0), (1.3, -1.0, 1.3, 1.3)], dual_clip=1.4)
    check("gspo", [(1.5, -1.0, 1.4, 0.0), (1.3, -1.0, 1.3, 1.3)], max_ratio=1.4)


def test_cispo_holds_the_weight_and_keeps_every_gradient() -> None:
    cases = [(ratio, a, -weight * a * (-2 + math.log(ratio)), -weight * a) for ratio, weight in RATIOS for a in (1, -2)]
    check("cispo", cases)
    check("cispo", [(1.5, 1.0, -1.25 * (-2 + math.log(1.5)), -1.25)], clip_high=0.25)


RATIOS = [(0.01, 0.01), (1.0, 1.0), (4.9, 4.9), (5.1, 5.0), (100.0, 5.0)]
"""(r, the weight that it becomes)."""


def test_aepo_keeps_the_gradient_of_the_bound() -> None:
    cases = [
        (1.1, 2.0, -2.2, -2.2),
        (1.3, 2.0, -2.4, -2.4),  # value and gradient both stay at 1.2 * A
        (50.0, 2.0, -2.4, -2.4),
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),  # everything else is the clipped surrogate
        (1.3, -2.0, 2.6, 2.6),
        (3.5, -2.0, 6.0, 0.0),
    ]
    check("aepo", cases)
    check("aepo", [(3.0, 1.0, -1.2, -1.2), (3.0, -1.0, 2.0, 0.0)], max_ratio=2.0)


@pytest.mark.parametrize("name", CLIPPED)
def test_bounds_can_be_set_and_max_ratio_acts_whatever_the_sign(name: str) -> None:
    wide = {"clip_low": 0.1, "clip_high": 0.4, "dual_clip": None, "max_ratio": 2.0}
    check(name, [(1.3, 1.0, -1.3, -1.3), (1.5, 1.0, -1.4, 0.0), (0.85, -1.0, 0.9, 0.0)], **wide)
    check(name, [(3.0, -1.0, 2.0, 0.0), (1.9, -1.0, 1.9, 1.9), (3.0, 1.0, -1.4, 0.0)], **wide)


@pytest.mark.parametrize("name", FAMILIES)
def test_at_ratio_one_every_family_is_the_policy_gradient(name: str) -> None:
    for advantage in (0.7, -1.3):
        assert loss_and_slope(1.0, advantage, loss_settings(name))[1] == pytest.approx(-advantage, abs=1e-12)


def test_soft_and_hard_part_off_policy() -> None:
    """A token shared by trajectories with advantages +1 and -1 at ratio 1.3: derivative of the objective -1 and 0."""

    def slope(ratio: float, advantages: list[list[float]]) -> float:
        old = torch.tensor([-2.0], dtype=F64)
        logp = (old + math.log(ratio)).requires_grad_()
        loss_terms(pack(logp, old, [[0], [0]], advantages), loss_settings()).sum().backward()
        assert logp.grad is not None
        return -logp.grad.item() / ratio

    assert slope(1.3, [[1.0], [-1.0]]) == pytest.approx(-1.0)
    assert slope(1.3, [[0.0], [0.0]]) == 0.0
    assert slope(1.0, [[1.0], [-1.0]]) == pytest.approx(0.0)


# Copies by the definition of each family, one token of one trajectory at a time, in plain torch.


def naive_clip(r: torch.Tensor, a: float, s: Any) -> torch.Tensor:
    r = r if s.max_ratio is None else r.clamp(max=s.max_ratio)
    objective = torch.minimum(r * a, r.clamp(1 - s.clip_low, 1 + s.clip_high) * a)
    return (
        objective
        if s.dual_clip is None or a >= 0
        else torch.maximum(objective, torch.tensor(s.dual_clip * a, dtype=F64))
    )


def naive_aepo(r: torch.Tensor, a: float, s: Any) -> torch.Tensor:
    if a > 0 and r > 1 + s.clip_high:
        return (1 + s.clip_high) / r.detach() * r * a
    return naive_clip(r, a, s)


def naive_cispo(logp: torch.Tensor, old: torch.Tensor, a: float, s: Any) -> torch.Tensor:
    return min(math.exp(logp.item() - old.item()), 1 + s.clip_high) * a * logp


def naive(logp: torch.Tensor, tokens: TokenInputs, settings: LossSettings) -> torch.Tensor:
    """The sum over copies; `logp` is the leaf that is differentiated."""
    copies, total = tokens.copies, torch.zeros((), dtype=F64)
    for p in range(len(copies.index_P)):
        u, a, row = int(copies.index_P[p]), float(copies.advantage_P[p]), copies.row_P == copies.row_P[p]
        if settings.type == "cispo":
            term = -naive_cispo(logp[u], tokens.old_logp_U[u], a, settings)
        elif settings.type == "gspo":
            mine = copies.index_P[row]
            s = (logp[mine] - tokens.old_logp_U[mine]).mean().exp().detach()
            term = -naive_clip(s * logp[u].exp() / logp[u].exp().detach(), a, settings)
        else:
            family: Callable[..., torch.Tensor] = naive_aepo if settings.type == "aepo" else naive_clip
            term = -family((logp[u] - tokens.old_logp_U[u]).exp(), a, settings)
        assert tokens.reference_U is not None
        gap = tokens.reference_U[u] - logp[u]
        term = term + settings.kl * (gap.exp() - gap - 1) - settings.entropy_bonus * tokens.entropy_U[u]
        total = total + copies.coefficient_P[p] * term
    return total


def random_pack(generator: torch.Generator, spread: float) -> tuple[torch.Tensor, TokenInputs]:
    """Three trunks that fan out into trajectories; every shared token has advantages of both signs."""
    rows = [[0, 1, 2, 3], [0, 1, 4], [0, 5, 6, 7, 8], [9, 10], [9, 11, 12], [13]]
    advantages = [torch.randn(len(row), generator=generator, dtype=F64).tolist() for row in rows]
    weights = [torch.rand(len(row), generator=generator, dtype=F64).tolist() for row in rows]
    old = -3 * torch.rand(14, generator=generator, dtype=F64)
    logp = (old + spread * torch.randn(14, generator=generator, dtype=F64)).requires_grad_()
    reference = old + 0.3 * torch.randn(14, generator=generator, dtype=F64)
    return logp, pack(logp, old, rows, advantages, weights, entropy=-logp * 0.5, reference=reference)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("spread", [0.001, 0.3, 2.0])
def test_unique_tokens_equal_the_sum_over_copies(name: str, spread: float) -> None:
    options: dict[str, Any] = {"kl": 0.1, "entropy_bonus": 0.02}
    variants = [options] if name == "cispo" else [options, {**options, "dual_clip": 1.5}, {**options, "max_ratio": 1.6}]
    for seed, variant in enumerate(variants):
        logp, tokens = random_pack(torch.Generator().manual_seed(seed), spread)
        settings = loss_settings(name, **variant)
        ours = loss_terms(tokens, settings).sum()
        (gradient,) = torch.autograd.grad(ours, logp, retain_graph=True)
        theirs = naive(logp, tokens, settings)
        (expected,) = torch.autograd.grad(theirs, logp)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_the_one_token_form_of_soft_credit() -> None:
    """Sum over copies = S+ min(r, 1 + high) + S- min(max(r, 1 - low), c), S+- the sums of either sign."""
    settings = loss_settings("clip", clip_low=0.1, clip_high=0.3, dual_clip=2.0)
    for ratio in (0.2, 0.95, 1.0, 1.2, 1.8, 2.5):
        logp = torch.tensor([math.log(ratio)], dtype=F64)
        tokens = pack(logp, torch.zeros(1, dtype=F64), [[0]] * 4, [[0.7], [1.5], [-0.4], [-2.0]])
        form = 2.2 * min(ratio, 1.3) - 2.4 * min(max(ratio, 0.9), 2.0)
        assert loss_terms(tokens, settings).item() == pytest.approx(-form)


def test_gspo_takes_the_geometric_mean_of_the_trajectory() -> None:
    """Ratios 2 and 0.5 make s = 1; 4 and 1 make s = 2. The shared first token stands in both."""
    old = torch.full((3,), -3.0, dtype=F64)
    logp = (old + torch.tensor([2.0, 0.5, 2.0], dtype=F64).log()).requires_grad_()
    tokens = pack(logp, old, [[0, 1], [0, 2]], [[1.0, 1.0], [-1.0, -1.0]])
    loss = loss_terms(tokens, loss_settings("gspo"))
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([-1.0 + 2.0, -1.0, 2.0])
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0 + 2.0, -1.0, 2.0])


def test_gspo_with_one_advantage_has_the_gradient_of_the_sequence_ratio() -> None:
    """Derivative of -A s by ln policy of each token: -A s / p tokens; a coefficient of 1/p each gives that."""
    old = torch.tensor([-1.0, -2.0, -3.0], dtype=F64)
    logp = (old + torch.tensor([1e-4, -3e-4, 2e-4], dtype=F64)).requires_grad_()
    tokens = pack(logp, old, [[0, 1, 2]], [[1.5] * 3], [[1 / 3] * 3])
    (ours,) = torch.autograd.grad(loss_terms(tokens, loss_settings("gspo")).sum(), logp)
    (direct,) = torch.autograd.grad(-1.5 * (logp - old).mean().exp(), logp)
    torch.testing.assert_close(ours, direct, rtol=1e-12, atol=0)


def test_k3_by_hand() -> None:
    logp, other = torch.tensor([-1.0, -2.0, -1.5]), torch.tensor([-2.0, -1.0, -1.5])
    expected = [math.exp(-1) + 1 - 1, math.e - 1 - 1, 0.0]
    assert k3(logp, other).tolist() == pytest.approx(expected, abs=1e-6)


def test_k3_is_never_negative_and_estimates_the_divergence() -> None:
    gaps = torch.linspace(-30, 30, 601, dtype=F64)
    assert (k3(gaps, torch.zeros_like(gaps)) >= 0).all()
    p = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=F64)
    assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx((p * (p / q).log()).sum().item())


def test_kl_and_entropy_terms_count_with_the_mass() -> None:
    entropy = torch.tensor([0.5, 1.5], dtype=F64, requires_grad=True)
    logp = torch.tensor([-2.0, -2.0], dtype=F64)
    reference = torch.tensor([-2.0, -3.0], dtype=F64)
    tokens = pack(
        logp, logp, [[0, 1], [1]], [[1.0, -1.0], [0.0]], [[1.0, 1.0], [2.0]], entropy=entropy, reference=reference
    )
    loss = loss_terms(tokens, loss_settings(kl=0.1, entropy_bonus=0.01))
    assert loss.tolist() == pytest.approx([-1.0 - 0.005, 1.0 + 3 * (0.1 * (math.exp(-1) + 1 - 1) - 0.015)])
    loss.sum().backward()
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.01, -0.03])


@pytest.mark.parametrize("name", FAMILIES)
def test_kl_without_a_reference_is_refused(name: str) -> None:
    logp = torch.zeros(1)
    with pytest.raises(ValueError, match="no reference model"):
        loss_terms(pack(logp, logp, [[0]], [[1.0]]), loss_settings(name, kl=0.1))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("gap", [500.0, -500.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_the_number_range_stays_finite(name: str, gap: float, advantage: float) -> None:
    old = torch.tensor([-600.0])
    logp = (old + gap).requires_grad_()
    options = {} if name == "cispo" else {"dual_clip": None}
    tokens = pack(logp, old, [[0]], [[advantage]], reference=torch.tensor([-1200.0]))
    loss = loss_terms(tokens, loss_settings(name, kl=1e-3, **options)).sum()
    loss.backward()
    assert loss.isfinite()
    assert logp.grad is not None
    assert logp.grad.isfinite().all()
    assert abs(log_ratio(logp, old).item()) == LOG_RATIO_LIMIT
    assert abs(logp.grad.item()) <= 5.0


WEIGHTS = [np.array([1.0, 1.0, 0.5]), np.array([2.0]), np.array([0.0, 0.0]), np.array([0.5])]
GROUPS = [7, 7, 3, 9]
"""The third trajectory, alone in its group, weighs nothing."""


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("clip", {}, [[1 / 5, 1 / 5, 0.5 / 5], [2 / 5], [0, 0], [0.5 / 5]]),
        ("grpo", {}, [[0.4 / 3, 0.4 / 3, 0.2 / 3], [1 / 3], [0, 0], [1 / 3]]),
        ("dr_grpo", {"length": 10}, [[1 / 30, 1 / 30, 0.5 / 30], [2 / 30], [0, 0], [0.5 / 30]]),
        ("clip", {"aggregation": "group_sum"}, [[1 / 2, 1 / 2, 0.5 / 2], [1], [0, 0], [0.5 / 2]]),
    ],
)
def test_aggregations_by_hand(name: str, options: dict[str, Any], expected: list[list[float]]) -> None:
    got = coefficients(WEIGHTS, GROUPS, loss_settings(name, **options))
    assert [c.tolist() for c in got] == [pytest.approx(row) for row in expected]
    assert all(c.dtype == np.float64 for c in got)


AGGREGATIONS = ["token_mean", "sequence_mean", "constant", "group_sum"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_no_weight_at_all_gives_zeros(aggregation: str) -> None:
    settings = loss_settings("clip", aggregation=aggregation)
    assert [c.tolist() for c in coefficients([np.zeros(2)], [0], settings)] == [[0.0, 0.0]]
    assert coefficients([], [], settings) == []


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_packs_add_up_to_the_mini_batch(name: str, aggregation: str) -> None:
    """Coefficients of the whole, then any division into packs: one pass or one trajectory at a time."""
    settings = loss_settings(name, aggregation=aggregation, kl=0.1)
    rng = np.random.default_rng(0)
    weights = [rng.random(size) for size in (3, 1, 5, 2)]
    advantages = [rng.normal(size=len(w)) for w in weights]
    gaps = [0.4 * rng.normal(size=len(w)) for w in weights]
    shares = coefficients(weights, [0, 0, 1, 1], settings)
    total_mass = float(sum(c.sum() for c in shares))

    def result(chosen: list[int]) -> dict[str, float]:
        gap = torch.from_numpy(np.concatenate([gaps[i] for i in chosen]))
        starts = np.cumsum([0] + [len(gaps[i]) for i in chosen])
        rows = [list(range(a, b)) for a, b in pairwise(starts.tolist())]
        old, reference = torch.full_like(gap, -2), torch.full_like(gap, -2.5)
        tokens = pack(
            old + gap, old, rows, [advantages[i] for i in chosen], [shares[i] for i in chosen], reference=reference
        )
        found = {"loss": loss_terms(tokens, settings).sum()} | diagnostics(tokens, settings, total_mass)
        return {key: value.item() for key, value in found.items()}

    whole = result([0, 1, 2, 3])
    for packs in ([[0], [1], [2], [3]], [[3, 1], [0, 2]]):
        parts = [result(chosen) for chosen in packs]
        assert {key: sum(part[key] for part in parts) for key in whole} == pytest.approx(whole)
    mean_ratio = sum(float((np.exp(g) * c).sum()) for g, c in zip(gaps, shares, strict=True)) / total_mass
    assert whole["ratio/mean"] == pytest.approx(mean_ratio)


def at_ratios(ratios: list[float], advantages: list[float]) -> TokenInputs:
    logp = torch.tensor(ratios, dtype=F64).log()
    rows = [[u] for u in range(len(ratios))]
    return pack(logp, torch.zeros_like(logp), rows, [[a] for a in advantages], [[1 / len(ratios)] for _ in ratios])


def test_diagnostics_count_what_was_clipped() -> None:
    tokens = at_ratios([0.5, 0.5, 1.5, 1.5, 4.0], [-1.0, 1.0, 1.0, -1.0, -1.0])
    shares = diagnostics(tokens, loss_settings())
    assert {name: shares[f"clip_ratio/{name}"].item() for name in ("low", "high", "dual")} == {
        name: pytest.approx(0.2) for name in ("low", "high", "dual")
    }
    assert shares["ratio/mean"].item() == pytest.approx(1.6)
    mean_k3 = np.mean([r - math.log(r) - 1 for r in (0.5, 0.5, 1.5, 1.5, 4.0)])
    assert shares["kl/sampler"].item() == pytest.approx(mean_k3)
    assert "kl" not in shares


def test_diagnostics_count_the_copies_of_a_token_by_their_own_sign() -> None:
    logp = torch.tensor([math.log(1.5)], dtype=F64)
    tokens = pack(logp, torch.zeros(1, dtype=F64), [[0], [0]], [[1.0], [-1.0]], [[0.75], [0.25]])
    assert diagnostics(tokens, loss_settings())["clip_ratio/high"].item() == pytest.approx(0.75)
    assert diagnostics(tokens, loss_settings("clip", old="trainer")).keys() >= {"kl/trainer"}


def test_diagnostics_of_the_other_families() -> None:
    tokens = at_ratios([4.0, 6.0, 6.0, 0.9999], [1.0, 1.0, -1.0, -1.0])
    assert diagnostics(tokens, loss_settings("cispo"))["clip_ratio/high"].item() == pytest.approx(0.5)
    gspo = diagnostics(tokens, loss_settings("gspo"))
    assert (gspo["clip_ratio/high"].item(), gspo["clip_ratio/low"].item()) == (pytest.approx(0.5), 0.0)
    assert diagnostics(tokens, loss_settings("aepo"))["clip_ratio/dual"].item() == pytest.approx(0.25)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"cispo"}))
@pytest.mark.parametrize("option", ["dual_clip", "max_ratio"])
def test_bounds_out_of_order_are_refused(name: str, option: str) -> None:
    with pytest.raises(ConfigError, match=r"lies below 1 \+ clip_high = 1\.3"):
        loss_settings(name, clip_high=0.3, **{option: 1.1})


def test_an_unknown_family_and_an_unknown_option_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss\.type = 'reinforce' is unknown; did you mean reinforce\+\+\?"):
        loss_settings("reinforce")
    with pytest.raises(ConfigError, match=r'unknown key loss\.dual_clip with loss\.type = "cispo"'):
        loss_settings("cispo", dual_clip=3.0)
