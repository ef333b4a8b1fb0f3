"""Hostile code against the sandboxes of this machine. `make test-sandbox` runs this folder, as root and as a user.

`make test` does not: without ARPO_SANDBOX_TESTS=1 nothing here is collected. What every attempt came to is printed as
a table at the end, and appended to the file that ARPO_SANDBOX_TABLE names, for the table of all runs.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_world import World, world

if os.environ.get("ARPO_SANDBOX_TESTS") != "1":
    collect_ignore_glob = ["test_*.py"]

ROWS: list[dict[str, Any]] = []


@pytest.fixture(scope="session")
def around() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """Add to it: attempt, row, rung, status, holes, seconds, lag."""
    return ROWS


def pytest_terminal_summary(terminalreporter: Any) -> None:
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    for row in ROWS:
        row["user"] = user
    if path := os.environ.get("ARPO_SANDBOX_TABLE"):
        with open(path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in ROWS)
    else:
        from battery_table import table

        terminalreporter.write_line(table(ROWS))
