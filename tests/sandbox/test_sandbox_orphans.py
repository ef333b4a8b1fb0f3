# ruff: noqa: E501 - hostile programs keep their lines
"""A trainer that is killed in the middle of a call takes everything along: processes, and folders at the next start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_world import descendants

_TRAINER = """
import asyncio, sys
from arpo.tools.sandbox import ladder
from arpo.tools.sandbox.base import ExecLimits, ExecRequest
code = sys.argv[2]
async def main():
    sandbox = ladder.choose(sys.argv[1], ("numpy",))
    runs = [asyncio.ensure_future(sandbox.run(ExecRequest(code=code, limits=ExecLimits(wall_s=120, cpu_s=120)))) for _ in range(4)]
    await asyncio.sleep(1.5)
    print(sandbox.facts.get("scratch", ""), flush=True)
    await asyncio.gather(*runs)
asyncio.run(main())
"""
CODES = {
    "asleep": "import time\ntime.sleep(100)",
    "busy": "while True: pass",
    "daemons": "import os, signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nfor _ in range(5):\n    os.fork()\ntime.sleep(100)",
    "forks": "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass",
}


@pytest.mark.parametrize("rung", ["namespace", "landlock"])
@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_trainer_leaves_no_process(rung, kind, number, rows):
    command = [sys.executable, "-c", _TRAINER, rung, CODES[kind]]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert trainer.stdout is not None
    scratch = trainer.stdout.readline().strip()
    below = {pid: started(pid) for pid in descendants(trainer.pid)}
    assert below
    trainer.send_signal(number)
    trainer.wait()
    killed = time.perf_counter()
    while left := [pid for pid, when in below.items() if started(pid) == when]:
        if time.perf_counter() - killed > 5:
            break
        time.sleep(0.01)
    lag = time.perf_counter() - killed
    holes = [f"{len(left)} processes are left: {left[:5]}"] if left else []
    holes += _folder_left(rung, scratch)
    names = ("attempt", "row", "rung", "status", "holes", "seconds", "lag")
    name = f"trainer ends by {signal.Signals(number).name}, runs {kind}"
    rows.append(dict(zip(names, (name, "33", rung, "ok", holes, lag, lag), strict=True)))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not holes


def _folder_left(rung: str, scratch: str) -> list[str]:
    """After the next start."""
    if not scratch or not Path(scratch).exists():
        return []
    from arpo.tools.sandbox import ladder

    ladder.choose(rung, ()).end()
    return [f"{scratch} is left"] if Path(scratch).exists() else []


def started(pid: int) -> str:
    """The process's start, which tells it from a later one of its number; empty if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
