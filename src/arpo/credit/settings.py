"""How rewards become advantages: the configuration of the credit room.

One model per family, told apart by `type`, with the options that mean something for it and no others: an epsilon where
something is divided by a standard deviation, `shared_prefix_average` where the copies of a shared token are counted
(the family `tree` has weights of its own). What each family computes stands in its file.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from arpo.settings import Frozen
from arpo.variants import choose


class _Family(Frozen):
    """What every family says."""

    type: str

    @property
    def needs_reference(self) -> bool:
        """Whether `assign_all` must be given the divergence from a reference policy."""
        return False


class CountingCredit(_Family):
    """Families that count a shared token once per trajectory through it."""

    shared_prefix_average: bool = False
    """A token shared by d trajectories weighs 1 in all (1/d on each copy) instead of d."""


class NormalisedCredit(CountingCredit):
    """Families that divide by a standard deviation."""

    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""


class GrpoCredit(NormalisedCredit):
    """Every trajectory carries its group-normalised reward."""

    type: Literal["grpo"] = "grpo"


class SoftCredit(NormalisedCredit):
    """GRPO's values; the name promises that all copies of a shared token enter one optimiser step."""

    type: Literal["soft"] = "soft"


class HardCredit(NormalisedCredit):
    """A shared token carries the mean over the trajectories through it."""

    type: Literal["hard"] = "hard"


class TreeCredit(_Family):
    """Splitting weights and leave-subtree-out baselines: unbiased on a branched group."""

    type: Literal["tree"] = "tree"


class RlooCredit(CountingCredit):
    """The reward minus the mean of the other trajectories' rewards."""

    type: Literal["rloo"] = "rloo"


class ReinforcePlusPlusCredit(NormalisedCredit):
    """Discounted returns, normalised over all tokens of the batch."""

    type: Literal["reinforce++"] = "reinforce++"

    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per policy token."""

    kl: float = Field(0.0, ge=0)
    """Weight of ln(policy / reference), taken off each token's reward; above 0 a reference model is needed."""

    group_mean: bool = False
    """Take the group's mean off the rewards first (the paper's variant with a baseline, for several trajectories per
    prompt)."""

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0


class DrGrpoCredit(CountingCredit):
    """The reward minus the group's mean, not divided by anything."""

    type: Literal["dr_grpo"] = "dr_grpo"


class TreeGrpoCredit(NormalisedCredit):
    """Normalised in the group plus normalised in the trajectory's own tree (its root's subtree)."""

    type: Literal["tree_grpo"] = "tree_grpo"


class TreePoCredit(CountingCredit):
    """The reward against the means of all subtrees that it lies in, larger ones counting more."""

    type: Literal["treepo"] = "treepo"


class TreeRlCredit(CountingCredit):
    """Each node's value against the root's and the parent's."""

    type: Literal["treerl"] = "treerl"


class At2poCredit(NormalisedCredit):
    """Each turn's value, of group-normalised rewards, as its advantage."""

    type: Literal["at2po"] = "at2po"


class GigpoCredit(NormalisedCredit):
    """Normalised in the group plus normalised among the continuations of one state."""

    type: Literal["gigpo"] = "gigpo"

    step_weight: float = Field(1.0, ge=0)
    """What the comparison among the continuations of one state counts, relative to the group's."""


class AepoCredit(NormalisedCredit):
    """GRPO's values, larger on tokens of high entropy."""

    type: Literal["aepo"] = "aepo"

    entropy_scale: float = Field(0.2, ge=0)
    """a in A * (1 + a * z(H)); 0.2 is the published code's."""


CreditSettings = Annotated[
    GrpoCredit
    | SoftCredit
    | HardCredit
    | TreeCredit
    | RlooCredit
    | ReinforcePlusPlusCredit
    | DrGrpoCredit
    | TreeGrpoCredit
    | TreePoCredit
    | TreeRlCredit
    | At2poCredit
    | GigpoCredit
    | AepoCredit,
    Field(discriminator="type"),
]


def credit_settings(type: str = "soft", **options: Any) -> CreditSettings:
    """The settings of one family: `credit_settings("hard", epsilon=0.0)`. Raises ConfigError with the nearest name."""
    return choose(CreditSettings, "credit", type, options)
