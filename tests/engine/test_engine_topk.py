"""The bracket holds the exact entropy, is as narrow as it can be, and survives the numbers that servers send."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.engine.topk import bracket, midpoints


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def exact(logp: np.ndarray) -> np.ndarray:
    return -(np.exp(logp) * logp).sum(-1)


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.integers(2, 400),
    share=st.floats(0.0, 1.0),
    sharpness=st.floats(0.0, 30.0),
)
def test_the_bracket_holds_the_exact_entropy(seed: int, vocab: int, share: float, sharpness: float) -> None:
    logp = log_softmax(np.random.default_rng(seed).normal(0.0, 1.0, (4, vocab)) * sharpness)
    known = max(1, round(share * vocab))
    top = np.sort(logp, -1)[:, ::-1][:, :known]
    low, high = bracket(top, vocab)
    truth = exact(logp)
    assert (low <= truth + 1e-9).all()
    assert (truth <= high + 1e-9).all()
    assert (low >= -1e-9).all()


@given(seed=st.integers(0, 2**32 - 1), sharpness=st.floats(0.1, 5.0))
def test_more_log_probs_never_widen_it(seed: int, sharpness: float) -> None:
    logp = np.sort(log_softmax(np.random.default_rng(seed).normal(0.0, 1.0, (1, 50)) * sharpness), -1)[:, ::-1]
    widths = [float(np.subtract(*bracket(logp[:, :known], 50)[::-1])[0]) for known in range(1, 51)]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(widths))
    assert widths[-1] == pytest.approx(0.0, abs=1e-12)


def test_both_ends_are_attained() -> None:
    uniform_rest = np.log(np.array([[0.6, *[0.4 / 8] * 8]]))
    low, high = bracket(uniform_rest[:, :1], 9)
    assert high[0] == pytest.approx(exact(uniform_rest)[0])
    lumped_rest = np.log(np.array([0.4, 0.3, 0.3]))
    low, high = bracket(lumped_rest[None, :2], 1000)
    assert low[0] == pytest.approx(exact(lumped_rest))
    assert high[0] > low[0] + 1


def test_order_does_not_matter() -> None:
    logp = np.log(np.array([[0.5, 0.2, 0.1]]))
    assert np.allclose(bracket(logp, 10), bracket(logp[:, ::-1], 10))


@pytest.mark.parametrize("nothing", [-np.inf, -9999.0, -3.4e38])
def test_tokens_of_probability_zero_add_nothing(nothing: float) -> None:
    low, high = bracket(np.array([[0.0, nothing, nothing]]), 10)
    assert low[0] == high[0] == 0.0


def test_rounding_above_one_leaves_no_negative_rest() -> None:
    low, high = bracket(np.log(np.array([[0.5, 0.5 + 1e-7]])), 10)
    assert low[0] == high[0] == pytest.approx(np.log(2.0), abs=1e-6)


def test_midpoints_and_half_widths_are_float32() -> None:
    logp = np.log(np.array([[0.5, 0.2], [0.9, 0.05]]))
    low, high = bracket(logp, 10)
    middle, slack = midpoints(logp, 10)
    assert middle.dtype == slack.dtype == np.float32
    assert np.allclose(middle - slack, low, atol=1e-6)
    assert np.allclose(middle + slack, high, atol=1e-6)


def test_no_tokens_no_brackets() -> None:
    middle, slack = midpoints(np.empty((0, 5)), 10)
    assert middle.shape == slack.shape == (0,)


@pytest.mark.parametrize("shape", [(1, 0), (1, 11)])
def test_a_count_that_cannot_be_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="vocabulary of 10"):
        bracket(np.zeros(shape), 10)
