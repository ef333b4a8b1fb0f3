"""A few of the hostile programs that `make test-sandbox` makes all of, against the best sandbox of this machine."""

import asyncio

import pytest
from sandbox_attempts import Attempt, all_attempts
from sandbox_world import differences, listening, make, marked, snapshot, traces, world

from arpo.errors import ToolSetupError
from arpo.tools.sandbox import ladder

CHOSEN = (
    "read secrets by path",
    "environment",
    "change programs and libraries",
    "leave files for the next run",
    "find files of an earlier run",
    "TCP to the trainer",
    "unix sockets of the machine",
    "forbidden calls",
    "32-bit calls by int 0x80",
    "write into every other descriptor",
    "close even the standard ones",
    "patched builtins",
    "after patched builtins",
    "bytes that are no text",
    "a flood of stdout",
    "segfault",
    "signals that harm nobody, to everybody",
    "kill the parent",
    "daemon",
    "fork bomb",
    "six gigabytes at once",
    "fill the disk",
    "no descriptor of the host is open",
)
PATIENCE = 20.0
"""Seconds until nothing may be left of a run, on a machine that is busy with other tests."""


def _sandbox():
    try:
        return ladder.choose("auto", ("numpy",))
    except ToolSetupError as error:
        pytest.skip(f"no sandbox works here: {error}")


def test_hostile_programs_are_contained():
    """In one test, because they share a sandbox, and the host is looked at before and after all of them."""
    attempts = {attempt.name: attempt for attempt in all_attempts()}
    holes: dict[str, list[str]] = {}
    with world() as around:
        before, ports = snapshot(), listening()
        sandbox = _sandbox()
        for name in CHOSEN:
            attempt: Attempt = attempts[name]
            assert not holes.get(attempt.after), f"{name}: not made, since {attempt.after} was not contained"
            holes[name] = asyncio.run(make(sandbox, attempt, around, PATIENCE)).holes
        asyncio.run(sandbox.close())
        changed = differences(before, snapshot()) + sorted(listening() - ports)
        changed += marked(around.token[:15]) + traces(around.token)
    assert {name: found for name, found in holes.items() if found} == {}
    assert changed == []
