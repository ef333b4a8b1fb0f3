"""Our advantages against the numbers that TRL and verl computed from the same rewards (`make golden`; docs/peers.md).

Both libraries divide by the sample standard deviation, we by the population's. With n values and f = sqrt((n - 1) / n),
the one is the other over f, so theirs with epsilon e is exactly f times ours with epsilon f e.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import gap, golden, grid, label, laid_out, trees

from arpo.credit import assign_all, credit_settings
from arpo.tree import RolloutTree

EXACT = 1e-12
"""Both sides in float64."""
WHITENED = 2e-7
"""verl adds 1e-8 to the variance and to counts."""
SINGLE = 1e-6
"""TRL's advantages are float32."""


class Batch:
    """A fixture's responses as unbranched trees, and our advantages of them in the libraries' layout."""

    def __init__(self, inputs: dict[str, Any], groups: str = "groups") -> None:
        self.inputs, self.groups = inputs, inputs[groups]
        self.mask = grid(inputs["mask"])
        self.trees = trees(inputs, self.groups, grid(inputs["old_logp"]))

    def ours(self, type: str, divergence: Sequence[Sequence[np.ndarray]] | None = None, **options: Any) -> torch.Tensor:
        """float64 `[B, T]`, 0 outside the loss."""
        credits = assign_all(self.trees, credit_settings(type, **options), divergence)
        return laid_out(self.trees, credits, self.mask.shape)

    def by_group(self, table: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """`table(size)` for the rows of each group of that size, `[B, T]`."""
        sizes = [self.groups.count(group) for group in self.groups]
        return torch.stack([table(size)[row] for row, size in enumerate(sizes)])

    @property
    def alone(self) -> torch.Tensor:
        """Whether a response is the only one of its group, bool `[B, 1]`."""
        return torch.tensor([self.groups.count(group) == 1 for group in self.groups])[:, None]

    @property
    def rewards(self) -> torch.Tensor:
        """On every token in the loss, `[B, T]`."""
        return grid(self.inputs["rewards"])[:, None] * self.mask


def bessel(count: float) -> float:
    """f: population over sample standard deviation; 0 of a single value."""
    return math.sqrt((count - 1) / count)


@pytest.mark.parametrize("fixture", golden("verl"), ids=label)
@pytest.mark.parametrize(("name", "epsilon"), [("grpo", 1e-6), ("grpo_large_epsilon", 0.1)])
@pytest.mark.parametrize("family", ["grpo", "soft", "hard"])
def test_verl_grpo(fixture: dict[str, Any], name: str, epsilon: float, family: str) -> None:
    """f times ours with epsilon f e. A single response carries R / (1 + e) there and 0 here.

    Without branches there is nothing for `soft` and `hard` to differ in.
    """
    batch = Batch(fixture["inputs"])
    ours = batch.by_group(lambda size: bessel(size) * batch.ours(family, epsilon=bessel(size) * epsilon))
    assert not ours[batch.alone[:, 0]].any()
    theirs = grid(fixture["advantages"][name])
    assert gap(ours, theirs * ~batch.alone) < EXACT
    # That 1 + e is float32 in verl whatever the rewards are.
    assert gap(batch.rewards * batch.alone / (1 + epsilon), theirs * batch.alone) < SINGLE


@pytest.mark.parametrize("fixture", golden("verl"), ids=label)
@pytest.mark.parametrize(
    ("name", "type", "single"),
    [("grpo_without_std", "dr_grpo", 1.0), ("rloo", "rloo", 1.0), ("rloo_vectorized", "rloo", 0.0)],
)
def test_verl_differences_from_a_mean(fixture: dict[str, Any], name: str, type: str, single: float) -> None:
    """Equal, except that a single response carries its reward in two of three; ours is 0, as in the third."""
    batch = Batch(fixture["inputs"])
    ours = batch.ours(type)
    assert not ours[batch.alone[:, 0]].any()
    assert gap(ours + single * batch.rewards * batch.alone, fixture["advantages"][name]) < EXACT


def k1_per_segment(batch: Batch, k1: torch.Tensor) -> list[list[np.ndarray]]:
    """An estimate per token `[B, T]` as `assign_all` takes it: per tree and segment, empty where no policy wrote."""
    found, row = [], 0
    for tree in batch.trees:
        own = [np.empty(0)] * len(tree.segments)
        for leaf in tree.leaves:
            for node, start in starts(tree, leaf):
                if tree.segments[node].is_policy:
                    own[node] = k1[row, start : start + len(tree.segments[node])].numpy()
            row += 1
        found.append(own)
    return found


def starts(tree: RolloutTree, leaf: int) -> list[tuple[int, int]]:
    """(node, place of its first token in the response) for the nodes after the prompt."""
    nodes = tree.ancestry(leaf)[1:]
    sizes = [len(tree.segments[node]) for node in nodes]
    return list(zip(nodes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))


@pytest.mark.parametrize("fixture", golden("verl"), ids=label)
@pytest.mark.parametrize(
    ("name", "groups", "options"),
    [
        ("reinforce_plus_plus", "groups", {}),
        ("reinforce_plus_plus_discounted", "groups", {"gamma": 0.9}),
        ("reinforce_plus_plus_kl", "groups", {"kl": 0.05}),
        ("reinforce_plus_plus_baseline", "even_groups", {"group_mean": True}),
    ],
)
def test_verl_reinforce_plus_plus(fixture: dict[str, Any], name: str, groups: str, options: dict[str, Any]) -> None:
    """f times ours without epsilon, n being the tokens of the batch; the divergence is verl's own k1."""
    batch = Batch(fixture["inputs"], groups)
    divergence = k1_per_segment(batch, grid(fixture["kl"]["k1/near"]["per_token"]))
    ours = batch.ours("reinforce++", divergence, epsilon=0.0, **options)
    assert gap(bessel(float(batch.mask.sum())) * ours, fixture["advantages"][name]) < WHITENED


@pytest.mark.parametrize("fixture", golden("trl"), ids=label)
def test_trl_group_scaling(fixture: dict[str, Any]) -> None:
    """f times ours with epsilon f 1e-4; its groups are all of one size."""
    batch = Batch(fixture["inputs"])
    f = bessel(batch.groups.count(0))
    ours = f * batch.ours("grpo", epsilon=f * 1e-4)
    assert gap(ours, grid(fixture["advantages"]["group"])[:, None] * batch.mask) < SINGLE


@pytest.mark.parametrize("fixture", golden("trl"), ids=label)
def test_trl_without_scaling_is_dr_grpo(fixture: dict[str, Any]) -> None:
    batch = Batch(fixture["inputs"])
    assert gap(batch.ours("dr_grpo"), grid(fixture["advantages"]["none"])[:, None] * batch.mask) < SINGLE


@pytest.mark.parametrize("fixture", golden("trl"), ids=label)
def test_trl_batch_scaling_is_dr_grpo_over_the_batchs_deviation(fixture: dict[str, Any]) -> None:
    """We have no such family: it is Dr. GRPO's advantage over the sample deviation of all rewards."""
    batch = Batch(fixture["inputs"])
    deviation = float(grid(fixture["inputs"]["rewards"]).std()) + 1e-4
    assert gap(batch.ours("dr_grpo") / deviation, grid(fixture["advantages"]["batch"])[:, None] * batch.mask) < SINGLE


def test_every_recorded_advantage_is_compared() -> None:
    """A new estimator in a fixture must be given a test here."""
    plus = {f"reinforce_plus_plus{suffix}" for suffix in ("", "_discounted", "_kl", "_baseline")}
    known = {"grpo", "grpo_large_epsilon", "grpo_without_std", "rloo", "rloo_vectorized"} | plus
    assert all(set(fixture["advantages"]) == known for fixture in golden("verl"))
    assert all(set(fixture["advantages"]) == {"group", "none", "batch"} for fixture in golden("trl"))
