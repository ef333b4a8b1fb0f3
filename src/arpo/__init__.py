"""arpo: reinforcement learning for tool-using language models with entropy-guided rollout trees.

What a tool of one's own needs is here: `arpo.tool`, `arpo.environment`, `arpo.ToolError` and what they stand on. They
are imported when first asked for, so that the command line starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arpo.tools.base import ToolContext, ToolError, ToolResult, ToolStatus, TransientError
    from arpo.tools.environment import environment
    from arpo.tools.function import tool

__version__ = "0.1.0"
__all__ = ["ToolContext", "ToolError", "ToolResult", "ToolStatus", "TransientError", "environment", "tool"]

_HOMES = {"tool": "arpo.tools.function", "environment": "arpo.tools.environment"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'arpo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "arpo.tools.base")), name)
