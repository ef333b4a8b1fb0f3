"""From settings to the Python tool: the sandbox that they name, tried out before anything relies on it."""

import logging
from collections.abc import Callable, Sequence

from arpo.errors import ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.registry import Surroundings
from arpo.tools.sandbox.base import Sandbox
from arpo.tools.sandbox.settings import PythonSettings
from arpo.tools.sandbox.tool import PythonTool

log = logging.getLogger(__name__)


def python(settings: PythonSettings, around: Surroundings) -> Sequence[Tool]:
    """The Python tool in the sandbox that the settings name. Raises ToolSetupError with the remedy."""
    return [PythonTool(open_sandbox(settings), settings)]


def open_sandbox(settings: PythonSettings) -> Sandbox:
    """The sandbox, ready. Raises ToolSetupError with the remedy."""
    if settings.backend != "auto" or settings.fallback is None:
        return _OPENERS[settings.backend](settings)
    try:
        return _on_this_machine(settings)
    except ToolSetupError as error:
        log.warning(
            "tool 'python': no sandbox for processes works here, so it runs in monty, as `fallback` says: %s", error
        )
        return _monty(settings)


def _on_this_machine(settings: PythonSettings) -> Sandbox:
    from arpo.tools.sandbox import ladder

    return ladder.shared(settings.backend, preload=settings.preload)


def _monty(settings: PythonSettings) -> Sandbox:
    try:
        from arpo.tools.sandbox.monty import MontySandbox
    except ImportError as error:
        raise ToolSetupError(f"tool 'python': {error}; install it with: pip install pydantic-monty") from error
    return MontySandbox(now=settings.now)


_OPENERS: dict[str, Callable[[PythonSettings], Sandbox]] = {
    "auto": _on_this_machine,
    "namespace": _on_this_machine,
    "landlock": _on_this_machine,
    "monty": _monty,
}
