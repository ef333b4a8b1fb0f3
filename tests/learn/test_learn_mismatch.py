"""The sampler's and the trainer's probabilities of the same tokens: weights, rejection, figures."""

import math

import numpy as np
import pytest

from arpo.errors import ConfigError
from arpo.learn.mismatch import mismatch
from arpo.learn.settings import LossSettings, loss_settings


def settings(cap: float | None = None, reject: float | None = None) -> LossSettings:
    return loss_settings("clip", old="trainer", mismatch_cap=cap, mismatch_reject=reject)


def at_ratios(*rows: list[float]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    sampler = [np.full(len(row), -1.5, np.float32) for row in rows]
    return [s + np.log(row) for s, row in zip(sampler, rows, strict=True)], sampler


def test_weights_are_the_ratio_up_to_the_cap() -> None:
    result = mismatch(*at_ratios([0.5, 1.0, 1.9], [2.0, 3.0]), settings(cap=2.0))
    assert [w.tolist() for w in result.weights] == [pytest.approx([0.5, 1.0, 1.9]), pytest.approx([2.0, 2.0])]
    assert result.keep_R.tolist() == [True, True]
    assert result.metrics["mismatch/capped_frac"] == pytest.approx(1 / 5)
    assert result.metrics["mismatch/ratio_max"] == pytest.approx(3.0)


def test_figures_come_without_a_remedy() -> None:
    ratios = [0.5, 1.0, 3.0]
    result = mismatch(*at_ratios(ratios[:1], ratios[1:]), settings())
    assert [w.tolist() for w in result.weights] == [[1.0], [1.0, 1.0]]
    assert result.metrics == {
        "mismatch/kl": pytest.approx(np.mean([r - math.log(r) - 1 for r in ratios])),
        "mismatch/ratio_max": pytest.approx(3.0),
        "mismatch/rejected_frac": 0.0,
        "mismatch/capped_frac": 0.0,
    }


def test_a_trajectory_is_rejected_by_its_mean() -> None:
    """rho = 1.1 on one token in ten: 0.1 - ln 1.1 = 4.7e-3 there, 4.7e-4 on average."""
    old, sampler = at_ratios([1.1] + [1.0] * 9, [1.1] * 10, [1 / 1.1] * 10)
    result = mismatch(old, sampler, settings(reject=1e-3))
    assert result.keep_R.tolist() == [True, False, False]
    assert result.metrics["mismatch/rejected_frac"] == pytest.approx(2 / 3)
    assert mismatch(old, sampler, settings(reject=5e-3)).keep_R.all()


def test_equal_programs_change_nothing() -> None:
    logp = [np.array([-0.1, -3.0], np.float32), np.array([-7.0], np.float32)]
    result = mismatch(logp, logp, settings(cap=1.5, reject=1e-6))
    assert result.keep_R.all()
    assert [w.tolist() for w in result.weights] == [[1.0, 1.0], [1.0]]
    assert result.metrics["mismatch/kl"] == 0.0


def test_impossible_tokens_stay_finite() -> None:
    result = mismatch([np.array([-900.0, 0.0])], [np.array([0.0, -900.0])], settings(cap=2.0, reject=1e-2))
    assert result.keep_R.tolist() == [False]
    assert all(math.isfinite(value) for value in result.metrics.values())
    assert result.weights[0].tolist() == pytest.approx([math.exp(-20), 2.0])


def test_nothing_to_compare() -> None:
    assert mismatch([], [], settings(reject=1e-3)).metrics["mismatch/kl"] == 0.0
    assert mismatch([np.zeros(0)], [np.zeros(0)], settings(reject=1e-3)).keep_R.tolist() == [True]


@pytest.mark.parametrize("option", [{"mismatch_cap": 2.0}, {"mismatch_reject": 1e-3}])
@pytest.mark.parametrize("family", ["clip", "gspo", "cispo"])
def test_correcting_twice_is_refused(family: str, option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r'count it twice; set loss\.old = "trainer"'):
        loss_settings(family, **option)
    loss_settings(family, old="trainer", **option)
