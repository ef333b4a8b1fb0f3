"""Advantages over trees: one short file per family, looked up by name."""

from arpo.credit import grpo as _grpo
from arpo.credit import hard as _hard
from arpo.credit import soft as _soft
from arpo.credit import tree as _tree
from arpo.credit.base import Credit, assign, assign_all, get, register, register_batch
from arpo.credit.settings import CreditSettings, credit_settings

__all__ = ["Credit", "CreditSettings", "assign", "assign_all", "credit_settings", "get", "register", "register_batch"]
_FAMILIES = (_grpo, _hard, _soft, _tree)
"""Imported so that they register."""
