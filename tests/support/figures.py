"""What tests against real engines measure, printed as a Markdown table after the last of them.

A conftest imports both names.
"""

from typing import Any

import pytest

FIGURES: dict[str, str] = {}


@pytest.fixture(scope="session")
def figures() -> dict[str, str]:
    """What was measured, by name, for the table at the end."""
    return FIGURES


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if FIGURES:
        terminalreporter.write_line("\n| measured | value |\n|---|---|")
        for name, value in FIGURES.items():
            terminalreporter.write_line(f"| {name} | {value} |")
