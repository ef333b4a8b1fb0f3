"""Schedules by hand; what is decayed."""

import pytest
import torch

from arpo.learn.optim import Stepper, rate
from arpo.learn.settings import OptimSettings


def rates(total: int, **settings: object) -> list[float]:
    return [rate(OptimSettings(lr=1.0, **settings), update, total) for update in range(total)]


def test_warm_up_rises_linearly_to_the_rate_and_stays() -> None:
    assert rates(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_cosine_falls_towards_zero() -> None:
    assert rates(6, schedule="cosine", warmup_steps=2) == pytest.approx(
        [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6
    )


def test_a_warm_up_longer_than_the_run() -> None:
    assert rates(2, schedule="cosine", warmup_steps=4) == pytest.approx([0.25, 0.5])


def test_past_the_end_of_a_cosine() -> None:
    with pytest.raises(ValueError, match="update 7 of a cosine schedule of 6 updates"):
        rate(OptimSettings(schedule="cosine"), 6, 6)
    assert rate(OptimSettings(lr=0.5), 6, 6) == 0.5


def test_decay_acts_on_matrices_alone() -> None:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(1.0)
    stepper = Stepper(model, OptimSettings(weight_decay=0.5))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    stepper.step(0.1)
    assert torch.allclose(model.weight, torch.full((2, 3), 0.95))
    assert torch.equal(model.bias, torch.ones(2))


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        Stepper(torch.nn.Linear(2, 2).requires_grad_(False), OptimSettings())


def test_betas_must_lie_below_one() -> None:
    with pytest.raises(ValueError, match="each must lie in"):
        OptimSettings(betas=(0.9, 1.0))
