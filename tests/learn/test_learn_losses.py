"""The surrogate case by case, by hand; averaging; KL."""

import math

import numpy as np
import pytest
import torch

from arpo.learn.losses import LOG_RATIO_LIMIT, TokenInputs, coefficients, diagnostics, k3, surrogate, token_loss
from arpo.learn.settings import LossSettings


def tokens_at(ratios: list[float], advantages: list[float], **more: torch.Tensor) -> TokenInputs:
    old = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    logp = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    advantage = torch.tensor(advantages, dtype=torch.float64)
    return TokenInputs(logp, old, advantage, more.pop("entropy_P", torch.zeros_like(old)), **more)


def loss_and_slope(ratio: float, advantage: float, settings: LossSettings) -> tuple[float, float]:
    """(loss, d loss / d ratio) of one token."""
    tokens = tokens_at([ratio], [advantage])
    loss = token_loss(tokens, settings).sum()
    loss.backward()
    return loss.item(), tokens.logp_P.grad.item() / ratio


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.0),
        (1.3, 2.0, -2.4, 0.0),  # above 1 + 0.2: clipped, no gradient
        (0.5, 2.0, -1.0, -2.0),  # a positive advantage is never clipped from below
        (1.0, -2.0, 2.0, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # below 1 - 0.2: clipped
        (1.3, -2.0, 2.6, 2.0),  # a negative advantage is not clipped from above ...
        (2.9, -2.0, 5.8, 2.0),
        (3.5, -2.0, 6.0, 0.0),  # ... until the dual clip at 3
        (1.3, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_with_dual_clip(ratio: float, advantage: float, loss: float, slope: float) -> None:
    assert loss_and_slope(ratio, advantage, LossSettings()) == pytest.approx((loss, slope), abs=1e-12)


def test_clip_bounds_are_separate_and_the_dual_clip_can_be_off() -> None:
    wide = LossSettings(clip_low=0.1, clip_high=0.4, dual_clip=None)
    assert loss_and_slope(1.3, 1.0, wide) == pytest.approx((-1.3, -1.0))
    assert loss_and_slope(0.85, -1.0, wide) == pytest.approx((0.9, 0.0))
    assert loss_and_slope(50.0, -1.0, wide) == pytest.approx((50.0, 1.0))


def test_max_ratio_truncates_whatever_the_sign() -> None:
    capped = LossSettings(dual_clip=None, max_ratio=2.0)
    assert loss_and_slope(3.0, -1.0, capped) == pytest.approx((2.0, 0.0))
    assert loss_and_slope(1.9, -1.0, capped) == pytest.approx((1.9, 1.0))
    assert loss_and_slope(3.0, 1.0, capped) == pytest.approx((-1.2, 0.0))


def test_soft_and_hard_part_off_policy() -> None:
    """A token shared by trajectories with advantages +1 and -1 at ratio 1.3: derivative of the objective -1 and 0."""
    soft = [-loss_and_slope(1.3, advantage, LossSettings())[1] for advantage in (1.0, -1.0)]
    hard = [-loss_and_slope(1.3, 0.0, LossSettings())[1] for _ in range(2)]
    assert sum(soft) == pytest.approx(-1.0)
    assert sum(hard) == 0.0
    on_policy = [-loss_and_slope(1.0, advantage, LossSettings())[1] for advantage in (1.0, -1.0)]
    assert sum(on_policy) == pytest.approx(0.0)


def test_the_copies_of_a_shared_token_have_the_one_token_form() -> None:
    """Soft: sum over copies = S+ min(r, 1 + high) + S- min(max(r, 1 - low), c), S+- the sums of either sign."""
    advantages = torch.tensor([0.7, 1.5, -0.4, -2.0], dtype=torch.float64)
    settings = LossSettings(clip_low=0.1, clip_high=0.3, dual_clip=2.0)
    for ratio in (0.2, 0.95, 1.0, 1.2, 1.8, 2.5):
        copies = surrogate(torch.full_like(advantages, ratio), advantages, settings).sum().item()
        form = 2.2 * min(ratio, 1.3) - 2.4 * min(max(ratio, 0.9), 2.0)
        assert copies == pytest.approx(form)


def test_k3_by_hand() -> None:
    logp, other = torch.tensor([-1.0, -2.0, -1.5]), torch.tensor([-2.0, -1.0, -1.5])
    expected = [math.exp(-1) + 1 - 1, math.e - 1 - 1, 0.0]
    assert k3(logp, other).tolist() == pytest.approx(expected, abs=1e-6)


def test_k3_estimates_the_divergence() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx((p * (p / q).log()).sum().item())


def test_kl_and_entropy_terms() -> None:
    entropy = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-2.0, -3.0], dtype=torch.float64)
    tokens = tokens_at([1.0, 1.0], [1.0, -1.0], entropy_P=entropy, reference_P=reference)
    loss = token_loss(tokens, LossSettings(kl=0.1, entropy_bonus=0.01))
    assert loss.tolist() == pytest.approx([-1.0 - 0.005, 1.0 + 0.1 * (math.exp(-1) + 1 - 1) - 0.015])
    loss.sum().backward()
    assert entropy.grad.tolist() == pytest.approx([-0.01, -0.01])


def test_kl_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference model"):
        token_loss(tokens_at([1.0], [1.0]), LossSettings(kl=0.1))


@pytest.mark.parametrize("gap", [500.0, -500.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_the_number_range_stays_finite(gap: float, advantage: float) -> None:
    old = torch.tensor([-600.0])
    logp = (old + gap).requires_grad_()
    tokens = TokenInputs(logp, old, torch.tensor([advantage]), torch.zeros(1))
    loss = token_loss(tokens, LossSettings(dual_clip=None)).sum()
    loss.backward()
    assert abs(loss.item()) <= math.exp(LOG_RATIO_LIMIT) * 1.001
    assert logp.grad.tolist() == [0.0]


WEIGHTS = [np.array([1.0, 1.0, 0.5]), np.array([2.0]), np.array([0.0, 0.0])]


def test_token_mean_divides_by_all_weights() -> None:
    got = coefficients(WEIGHTS, "token_mean")
    assert [c.tolist() for c in got] == [pytest.approx([1 / 4.5, 1 / 4.5, 0.5 / 4.5]), pytest.approx([2 / 4.5]), [0, 0]]


def test_sequence_mean_is_a_mean_of_means_over_trajectories_with_weight() -> None:
    got = coefficients(WEIGHTS, "sequence_mean")
    assert [c.tolist() for c in got] == [pytest.approx([0.2, 0.2, 0.1]), pytest.approx([0.5]), [0, 0]]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_no_weight_at_all_gives_zeros(aggregation: str) -> None:
    assert [c.tolist() for c in coefficients([np.zeros(2)], aggregation)] == [[0.0, 0.0]]


def test_diagnostics_count_what_was_clipped() -> None:
    tokens = tokens_at([0.5, 0.5, 1.5, 1.5, 4.0], [-1.0, 1.0, 1.0, -1.0, -1.0])
    shares = diagnostics(tokens, torch.full((5,), 0.2, dtype=torch.float64), LossSettings())
    assert shares["clip_ratio/low"].item() == pytest.approx(0.2)
    assert shares["clip_ratio/high"].item() == pytest.approx(0.2)
    assert shares["clip_ratio/dual"].item() == pytest.approx(0.2)
    assert shares["ratio/mean"].item() == pytest.approx(1.6)
    mean_k3 = np.mean([r - math.log(r) - 1 for r in (0.5, 0.5, 1.5, 1.5, 4.0)])
    assert shares["kl/sampler"].item() == pytest.approx(mean_k3)
    assert "kl" not in shares


@pytest.mark.parametrize("wrong", [{"dual_clip": 1.1, "clip_high": 0.2}, {"max_ratio": 1.1, "clip_high": 0.2}])
def test_bounds_out_of_order_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"lies below 1 \+ clip_high = 1\.2"):
        LossSettings(**wrong)
