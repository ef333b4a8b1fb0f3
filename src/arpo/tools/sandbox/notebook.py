"""What services that run cells in a Jupyter kernel have in common."""

import re
from collections.abc import Iterable

from arpo.tools.sandbox.base import ExecRequest

_LINE = re.compile(r"(?:Cell In\s*\[\d+\]|<ipython-input-[^>]*>|File <ipython[^>]*>)[^\n]*?, line (\d+)|-+> (\d+) ")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def seeds(request: ExecRequest) -> str:
    """A line of code that seeds random numbers. numpy, which takes a while to import, only if the code speaks of it."""
    line = f"import random; random.seed({request.seed})"
    if any("numpy" in code for code in (*request.earlier, request.code)):
        line += f"; import numpy; numpy.random.seed({request.seed % 2**32})"
    return line


def error_line(kind: str, message: str, traceback: Iterable[str]) -> str:
    """An exception in one line, with the line of the cell (the last one named) if the kernel's traceback has it."""
    lines = _LINE.findall(_ESCAPE.sub("", "\n".join(traceback)))
    where = f" (line {''.join(lines[-1])})" if lines else ""
    first = message.splitlines()[0] if message.strip() else ""
    return (f"{kind}: {first}" if first else kind) + where
