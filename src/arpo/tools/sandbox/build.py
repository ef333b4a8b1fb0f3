"""From settings to the Python tool."""

from collections.abc import Sequence

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.registry import Surroundings
from arpo.tools.sandbox.settings import PythonSettings


def python(settings: PythonSettings, around: Surroundings) -> Sequence[Tool]:
    """The Python tool in the sandbox that the settings name."""
    try:
        from arpo.tools.sandbox.tool import PythonTool
    except ImportError as error:
        raise ToolSetupError(f"tool 'python': {error}; install it with: pip install pydantic-monty") from error
    return [PythonTool(settings)]
