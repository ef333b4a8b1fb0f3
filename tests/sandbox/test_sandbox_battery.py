"""Every attempt of `sandbox_attempts`, on both rungs of the ladder of local sandboxes."""

import asyncio
import os
import time

import pytest
from sandbox_attempts import Attempt, all_attempts
from sandbox_world import differences, listening, make, marked, snapshot, traces

from arpo.tools.sandbox import ladder

RUNGS = ("namespace", "landlock")
HELD: dict[tuple[str, str], bool] = {}


@pytest.fixture(scope="module", params=RUNGS)
def sandbox(request, around, rows):
    """One sandbox for all attempts. The host is looked at before and after all of them."""
    before, ports = snapshot(), listening()
    made = ladder.choose(request.param)
    loop_runs(made)
    yield made
    asyncio.run(made.close())
    holes = differences(before, snapshot()) + [f"port {port} is open" for port in listening() - ports]
    holes += marked(around.token[:15]) + traces(around.token)
    if os.path.exists(scratch := made.facts.get("scratch", "")):
        holes.append(f"{scratch} is left")
    rows.append(row("the host is as it was", "", request.param, "ok", holes, 0.0, 0.0))
    assert not holes


def loop_runs(sandbox) -> None:
    """Whatever starts late has started."""
    from arpo.tools.sandbox.base import ExecRequest

    for _ in range(2):
        asyncio.run(sandbox.run(ExecRequest(code="1")))


def row(attempt, number, rung, status, holes, seconds, lag):
    names = ("attempt", "row", "rung", "status", "holes", "seconds", "lag")
    return dict(zip(names, (attempt, number, rung, status, holes, seconds, lag), strict=True))


@pytest.mark.parametrize("attempt", all_attempts(), ids=str)
def test_attempt(sandbox, attempt: Attempt, around, rows):
    if sandbox.name not in attempt.rungs:
        pytest.skip(f"says nothing of {sandbox.name}")
    if attempt.after and not HELD.get((sandbox.name, attempt.after), False):
        rows.append(
            row(attempt.name, attempt.row, sandbox.name, "not made", [f"{attempt.after!r} was no success"], 0, 0)
        )
        pytest.fail(f"not made, since {attempt.after!r} was not contained")
    started = time.perf_counter()
    try:
        out = asyncio.run(make(sandbox, attempt, around))
    except Exception as error:
        rows.append(row(attempt.name, attempt.row, sandbox.name, "no answer", [repr(error)], 0, 0))
        raise
    took = time.perf_counter() - started
    HELD[sandbox.name, attempt.name] = not out.holes
    status = out.result.status.value
    rows.append(row(attempt.name, attempt.row, sandbox.name, status, out.holes, took, out.lag))
    assert not out.holes, f"{out.holes}\n{out.result}"
