"""How rewards become advantages: the configuration of the credit room."""

from typing import Literal

from pydantic import Field

from arpo.settings import Frozen


class CreditSettings(Frozen):
    """Which advantage, and how it counts tokens that several trajectories share."""

    type: Literal["grpo", "soft", "hard"] = "soft"
    """`grpo` and `soft`: every trajectory carries its own group-normalised reward (the same values; they differ in name
    because `soft` promises that all copies of a shared token enter one optimiser step). `hard`: a shared token carries
    the mean over the trajectories through it."""

    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation of the group's rewards."""

    shared_prefix_average: bool = False
    """A token shared by d trajectories weighs 1 in all (1/d on each copy) instead of d."""
