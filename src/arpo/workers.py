"""Processes that do for us what may hang, grow or crash: how one is started.

A worker is a script that imports nothing of ours and talks over the socket that is its standard input. It is started by
exec, so it carries nothing of a training process: no memory, no open file, no secret of the environment. It is given
the pid of whoever started it and the megabytes it may use; keeping to them is the script's part, and so is ending with
its socket.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")


def start(script: Path, memory_mb: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new process that runs `script`, in a session of its own, and our end of the socket to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-s", str(script), str(os.getpid()), str(memory_mb)]
    try:
        with theirs:
            process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


def environment() -> dict[str, str]:
    """What a worker finds in its environment: no secrets, one thread, and the paths that Python imports from here."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    own = {"PYTHONPATH": paths, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return passed | own | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
