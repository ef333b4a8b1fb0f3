"""Advantages over trees: one short file per family, looked up by name."""

from arpo.credit import grpo as _grpo
from arpo.credit import hard as _hard
from arpo.credit import soft as _soft
from arpo.credit.base import Credit, assign, get, register

__all__ = ["Credit", "assign", "get", "register"]
_FAMILIES = (_grpo, _hard, _soft)
"""Imported so that they register."""
