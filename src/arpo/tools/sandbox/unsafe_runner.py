"""The process of `unsafe`: runs cells and writes how the last one ended. Uses the standard library alone."""

import ast
import contextlib
import io
import json
import random
import sys
import traceback
from typing import Any

_CELL = "cell"


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    random.seed(job["seed"])
    space: dict[str, Any] = {"__name__": "__main__"}
    for code in job["earlier"]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _run(code, space, job["seed"])
    said = _run(job["code"], space, job["seed"])
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with open(job["outcome"], "w") as file:
        json.dump(said, file)


def _run(code: str, space: dict[str, Any], seed: int) -> dict[str, str | None]:
    """`value`: repr of a last expression; `error`: the exception in one line."""
    try:
        if "numpy" in code:
            _seed_numpy(seed)
        return {"value": _value(code, space)}
    except SystemExit as end:
        return {"error": f"SystemExit: {end.code}" if end.code else None}
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is told
        return {"error": _line(error, code)}


def _seed_numpy(seed: int) -> None:
    """Once, where the code speaks of it; it takes a while to import."""
    if "numpy" not in sys.modules:
        with contextlib.suppress(ImportError):
            import numpy

            numpy.random.seed(seed % 2**32)


def _value(code: str, space: dict[str, Any]) -> str | None:
    body = ast.parse(code)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, _CELL, "exec"), space)  # noqa: S102 - what this process is for
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), _CELL, "eval"), space)  # noqa: S307
    return None if value is None else repr(value)


def _line(error: BaseException, code: str) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _CELL]
    line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError) or not frames or "\n" not in code.strip():
        return line
    return f"{line} (line {frames[-1].lineno})"


if __name__ == "__main__":
    main()
