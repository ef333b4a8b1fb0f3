"""Soft credit: GRPO's values on a tree, each shared token counted once per trajectory through it.

The values are GRPO's; what makes it soft credit is that the copies of a shared token meet in one optimiser step, where
they average out in the gradient. A tree is never split between mini-batches here, so that holds by construction.
Source: Dong et al. 2025, "Agentic Reinforced Policy Optimization", the soft setting of advantage attribution.
"""

from arpo.credit.base import Credit, register
from arpo.credit.grpo import grpo
from arpo.credit.settings import SoftCredit
from arpo.tree import RolloutTree


@register("soft")
def soft(tree: RolloutTree, settings: SoftCredit) -> Credit:
    """The trajectory's own advantage on every copy of a shared node."""
    return grpo(tree, settings)
