"""Draws from known distributions."""

import numpy as np
import pytest
import torch

from arpo.engine.sampling import draw

P = np.array([0.5, 0.25, 0.0, 0.125, 0.125])


def sample(uniform, temperature=1.0, top_p=1.0):
    uniform = np.atleast_1d(np.asarray(uniform, float))
    logits = torch.tensor(np.log(np.maximum(P, 1e-45)), dtype=torch.float32).expand(len(uniform), -1)
    ones = np.ones(len(uniform))
    return draw(logits, temperature * ones, top_p * ones, uniform)


def test_the_inverse_of_the_distribution_function():
    tokens, logprobs, entropies = sample([0.0, 0.499, 0.501, 0.749, 0.751, 0.874, 0.876, 1 - 2**-53])
    assert tokens.tolist() == [0, 0, 1, 1, 3, 3, 4, 4]
    np.testing.assert_allclose(logprobs, np.log(P[tokens.astype(int)]), rtol=1e-5)
    np.testing.assert_allclose(entropies, 1.75 * np.log(2), rtol=1e-5)


def test_frequencies():
    tokens = sample(np.random.default_rng(0).random(20_000))[0].astype(int)
    np.testing.assert_allclose(np.bincount(tokens, minlength=5) / 20_000, P, atol=0.01)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_logprob_and_entropy_are_those_at_the_temperature(temperature):
    tempered = P ** (1 / temperature)
    tempered[2] = 0
    tempered /= tempered.sum()
    _, logprobs, entropies = sample(0.3, temperature)
    np.testing.assert_allclose(logprobs, np.log(tempered[0]), rtol=1e-4)
    np.testing.assert_allclose(entropies, -(tempered[P > 0] * np.log(tempered[P > 0])).sum(), rtol=1e-4)


def test_top_p_narrows_the_choice_but_not_the_figures():
    tokens, logprobs, entropies = sample([0.0, 0.66, 0.67, 0.999], top_p=0.6)
    assert tokens.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(logprobs, np.log(P[tokens.astype(int)]), rtol=1e-5)
    np.testing.assert_allclose(entropies, 1.75 * np.log(2), rtol=1e-5)
    assert sample(0.999, top_p=1e-9)[0].tolist() == [0]


def test_greedy_rows_beside_sampled_ones():
    logits = torch.log(torch.tensor([[0.2, 0.8], [0.2, 0.8]]))
    tokens, logprobs, _ = draw(logits, np.array([0.0, 1.0]), np.ones(2), np.array([0.1, 0.1]))
    assert tokens.tolist() == [1, 0]
    np.testing.assert_allclose(logprobs, np.log([0.8, 0.2]), rtol=1e-6)


def test_impossible_tokens_have_no_entropy_and_are_never_drawn():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    for uniform in (0.0, 0.5, 1 - 2**-53):
        token, _, entropy = draw(logits, np.ones(1), np.ones(1), np.array([uniform]))[:, 0]
        assert token in (0, 2)
        assert entropy == pytest.approx(np.log(2))


def test_nan_is_an_error():
    with pytest.raises(FloatingPointError):
        draw(torch.tensor([[0.0, torch.nan]]), np.ones(1), np.ones(1), np.array([0.5]))
