"""Columns that some rows of a file have and others lack: what a writing script forgot, or a join lost."""

from collections.abc import Iterator, Mapping
from typing import Any

from arpo.data.findings import Finding

_NESTED = ("reward_model", "extra_info")


class Columns:
    """Which columns hold something, row by row; fields of `reward_model` and `extra_info` are columns, too."""

    def __init__(self) -> None:
        self._rows: dict[frozenset[str], list[int]] = {}

    def add(self, number: int, columns: Mapping[str, Any]) -> None:
        """One more row."""
        self._rows.setdefault(frozenset(_filled(columns)), []).append(number)

    def findings(self) -> Iterator[Finding]:
        """Every row that lacks a column which another row has."""
        everything = frozenset[str]().union(*self._rows)
        for name in sorted(everything):
            missing = sorted(number for names, numbers in self._rows.items() if name not in names for number in numbers)
            yield from (Finding("missing_column", number, "", name) for number in missing)


def _filled(columns: Mapping[str, Any]) -> Iterator[str]:
    for name, value in columns.items():
        if name in _NESTED and isinstance(value, dict):
            yield from (f"{name}.{field}" for field, one in value.items() if one is not None)
        elif value is not None:
            yield name
