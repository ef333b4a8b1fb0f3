# ruff: noqa: E501 - hostile programs keep their lines
"""Many runs at once, one of them hostile: the others are not slowed down beyond measure, and all give their answer.

What a hostile neighbour can take is its share of the cores, as long as its limits let it. So the others' times are
compared with the same load of honest runs.
"""

import asyncio
import time

import pytest
from sandbox_attempts import PRELUDE

from arpo.tools.sandbox import ladder
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecStatus

MANY = 64
CODE = "import numpy\nx = int((numpy.arange(1000) ** 2).sum())\nprint({n}, x)"
HOSTILE = {
    "fork bomb": "while True:\n    try: os.fork()\n    except OSError: pass",
    "memory": "a = []\nwhile True: a.append(bytearray(8 << 20))",
    "output": "while True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)",
    "disk and threads": "import threading\nfor _ in range(60):\n    threading.Thread(target=lambda: [open('f', 'wb').write(b'x' * 10**6) for _ in range(10**6)], daemon=True).start()\nwhile True: pass",
}


@pytest.mark.parametrize("rung", ["namespace", "landlock"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_one_hostile_among_many(rung, kind, rows):
    sandbox = ladder.choose(rung)
    try:
        before = asyncio.run(many(sandbox, None))
        during = asyncio.run(many(sandbox, HOSTILE[kind]))
        after = asyncio.run(many(sandbox, None))
    finally:
        asyncio.run(sandbox.close())
    baseline = (before + after) / 2
    ratio = during / baseline
    shown = f"p95 {during * 1000:.0f} ms : {baseline * 1000:.0f} ms = {ratio:.2f}"
    holes = [] if ratio < 3 else [shown]
    names = ("attempt", "row", "rung", "status", "holes", "seconds", "lag")
    row = (f"64 at once, one hostile ({kind})", "32", rung, shown, holes, during, 0.0)
    rows.append(dict(zip(names, row, strict=True)))
    assert not holes


async def many(sandbox, hostile: str | None) -> float:
    """Seconds: the 95th percentile of the honest runs, all asked for at once, each with its right answer."""

    async def one(number: int) -> float:
        started = time.perf_counter()
        result = await sandbox.run(ExecRequest(code=CODE.format(n=number), limits=ExecLimits(wall_s=60, cpu_s=10)))
        assert (result.status, result.stdout) == (ExecStatus.OK, f"{number} 332833500\n"), result
        return time.perf_counter() - started

    async def other() -> None:
        if hostile is not None:
            limits = ExecLimits(wall_s=4.0, cpu_s=4.0, memory_mb=512)
            result = await sandbox.run(ExecRequest(code=PRELUDE + hostile, limits=limits))
            assert result.status is not ExecStatus.INFRA_ERROR, result

    bad = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    times = sorted(await asyncio.gather(*(one(number) for number in range(MANY - 1))))
    await bad
    return times[int(0.95 * len(times))]
