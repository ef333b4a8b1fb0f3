"""Losses over unique tokens: one short file per family, looked up by the `type` of its settings."""

from arpo.learn.losses import aepo as _aepo
from arpo.learn.losses import cispo as _cispo
from arpo.learn.losses import clipped as _clipped
from arpo.learn.losses import gspo as _gspo
from arpo.learn.losses.aggregation import coefficients
from arpo.learn.losses.base import LOG_RATIO_LIMIT, Copies, TokenInputs, k3, log_ratio
from arpo.learn.losses.terms import diagnostics, loss_terms

__all__ = ["LOG_RATIO_LIMIT", "Copies", "TokenInputs", "coefficients", "diagnostics", "k3", "log_ratio", "loss_terms"]
_MODULES = (_aepo, _cispo, _clipped, _gspo)
"""Imported so that they register."""
