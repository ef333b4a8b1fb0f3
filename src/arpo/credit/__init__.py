"""Advantages over trees: one short file per family, looked up by name."""

from arpo.credit import (
    aepo,
    at2po,
    dr_grpo,
    gigpo,
    grpo,
    hard,
    reinforce_plus_plus,
    rloo,
    soft,
    tree,
    tree_grpo,
    treepo,
    treerl,
)
from arpo.credit.base import Credit, Divergence, assign, assign_all, get, register, register_batch
from arpo.credit.settings import CreditSettings, credit_settings

__all__ = [
    "Credit",
    "CreditSettings",
    "Divergence",
    "assign",
    "assign_all",
    "credit_settings",
    "get",
    "register",
    "register_batch",
]
_FAMILIES = (
    *(aepo, at2po, dr_grpo, gigpo, grpo, hard, reinforce_plus_plus),
    *(rloo, soft, tree, tree_grpo, treepo, treerl),
)
"""Imported so that they register."""
