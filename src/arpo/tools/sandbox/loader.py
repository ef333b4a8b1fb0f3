"""Starting the loader process, from a trainer that may have threads, secrets and open files.

It is exec'ed, so no thread's lock is copied; its environment is written out here, so no secret is; the only descriptor
that it gets is its control socket. It imports the modules of this folder under stand-ins for the packages above them,
so that nothing else of ours is loaded.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arpo.errors import ToolSetupError
from arpo.tools.sandbox import messages

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "en",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MPLBACKEND": "Agg",
}
_START = """
import sys, types
for name, path in (("arpo", None), ("arpo.tools", None), ("arpo.tools.sandbox", sys.argv[2])):
    module = types.ModuleType(name)
    module.__path__ = [path] if path else []
    sys.modules[name] = module
from arpo.tools.sandbox.zygote import main
main(int(sys.argv[1]))
"""
LOAD_SECONDS = 120.0


class RungError(ToolSetupError):
    """What this machine does not allow; another kind of sandbox may work."""


class LoaderProcess:
    """One loader, and the socket to it."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Raises OSError."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = str(Path(__file__).parent)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-c", _START, str(theirs.fileno()), folder],
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        messages.send(self.control, config | {"paths": _package_paths(config["preload"])})

    def wait_ready(self) -> dict[str, Any]:
        """Its first message. Raises ToolSetupError with the reason if it cannot do its work, RungError if that is up to
        the machine.
        """
        self.control.settimeout(LOAD_SECONDS)
        try:
            received = messages.receive(self.control)
        except TimeoutError:
            self.end()
            raise ToolSetupError(f"the packages were not loaded within {LOAD_SECONDS:.0f} s") from None
        if received is None or "failed" in received[0]:
            self.end()
            reason = received[0]["failed"] if received else f"{sys.executable} ended with {self.process.returncode}"
            blocked = received is not None and received[0].get("blocked")
            raise (RungError if blocked else ToolSetupError)(f"tool 'python': {reason}" if not blocked else str(reason))
        self.control.settimeout(None)
        return received[0]

    def end(self, grace: float = 3.0) -> None:
        """Close the socket, which ends it and all that it started; wait for it."""
        self.control.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _package_paths(packages: Sequence[str]) -> list[str]:
    """The folders in which this process finds the packages, without loading them."""
    found = (find_spec(name) for name in packages)
    origins = [spec.origin for spec in found if spec is not None and spec.origin]
    return sorted({str(Path(origin).parent.parent) for origin in origins if origin.endswith("__init__.py")})
