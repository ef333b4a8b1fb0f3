"""The command line: one file per command; commands parse, call and print, and hold no logic."""

from collections.abc import Sequence


def main(tokens: Sequence[str] | None = None) -> int:
    """Run `arpo TOKENS` (the process's own arguments by default) and return the exit code."""
    from arpo.cli.app import run

    return run(tokens)
