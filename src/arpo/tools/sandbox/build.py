"""From settings to the Python tool: the sandbox that they name, tried out before anything relies on it."""

import asyncio
import logging
import os
import threading
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

    assert settings.backend in ("auto", "namespace", "landlock")
    return ladder.shared(settings.backend, settings.preload, slots=settings.parallel)


def _monty(settings: PythonSettings) -> Sandbox:
    try:
        from arpo.tools.sandbox.monty import MontySandbox
    except ImportError as error:
        raise ToolSetupError(f"tool 'python': {error}; install it with: pip install pydantic-monty") from error
    return MontySandbox(now=settings.now)


def _fusion(settings: PythonSettings) -> Sandbox:
    from arpo.tools.sandbox.fusion import FusionSandbox

    assert settings.url is not None
    return _healthy(FusionSandbox(settings.url, _key(settings.key_env) if settings.key_env else None))


def _e2b(settings: PythonSettings) -> Sandbox:
    from arpo.tools.sandbox.e2b import E2BSandbox

    return _healthy(E2BSandbox(_key(settings.key_env or "E2B_API_KEY")))


def _unsafe(settings: PythonSettings) -> Sandbox:
    from arpo.tools.sandbox.unsafe import UnsafeLocal

    return UnsafeLocal(settings.parallel)


def _key(name: str) -> str:
    key = os.environ.get(name, "")
    if not key:
        raise ToolSetupError(f"tool 'python': the environment variable {name} is not set; put the service's key there")
    return key


def _healthy(sandbox: Sandbox) -> Sandbox:
    """A service that does not answer now is found out before the run starts. May be called inside an event loop."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(asyncio.run(_tried(sandbox))), name="sandbox health")
    thread.start()
    thread.join()
    if said != [""]:
        raise ToolSetupError(f"tool 'python', {sandbox.name}: {said[0] if said else 'trying it out failed'}")
    return sandbox


async def _tried(sandbox: Sandbox) -> str:
    try:
        return await sandbox.health()
    finally:
        await sandbox.close()


_OPENERS: dict[str, Callable[[PythonSettings], Sandbox]] = {
    "auto": _on_this_machine,
    "namespace": _on_this_machine,
    "landlock": _on_this_machine,
    "monty": _monty,
    "fusion": _fusion,
    "e2b": _e2b,
    "unsafe_local": _unsafe,
}
