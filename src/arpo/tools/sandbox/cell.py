"""The code itself: run as a notebook runs a cell, in a fresh `__main__`, and what is told of it.

Everything here happens in the process that runs the policy's code and may have been tampered with by the time it ends,
so what it tells is no more than text: whether the run was well is judged outside, by how the process ended.
"""

import ast
import atexit
import builtins
import io
import json
import linecache
import os
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

FAILED, OUT_OF_MEMORY = 1, 75
"""Exit codes: an exception; one that says that there was no memory."""
_LONGEST_ERROR = 4000


def run(request: dict[str, Any], tell: Callable[[bytes], None]) -> int:
    """Run earlier cells unheard, then the code. `tell` gets a JSON object with `error` or `value`. The exit code."""
    _streams()
    _seed(int(request["seed"]))
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    for number, code in enumerate(request["earlier"]):
        _replay(code, f"<cell {number + 1}>", main.__dict__)
    told: dict[str, str] = {}
    status = _guarded(lambda: _cell(request["code"], "<cell>", main.__dict__, told), request["code"], told)
    status = _guarded(_finish, "", told) or status
    tell(json.dumps({key: _cut(text, int(request["longest"])) for key, text in told.items()}).encode())
    return status


def _streams() -> None:
    """Fresh text streams: UTF-8, a line at a time, so that what was printed before a sudden end is seen."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), encoding="utf-8", errors="replace")
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def _replay(code: str, name: str, namespace: dict[str, Any]) -> None:
    """An earlier cell: its effects without its output; what it raises was told when it first ran."""
    kept = [os.dup(1), os.dup(2)]
    silent = os.open("/dev/null", os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        _guarded(lambda: _cell(code, name, namespace, {}), code, {})
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # noqa: BLE001  (a stream that was closed or replaced)
        pass
    finally:
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(silent)


def _cell(code: str, name: str, namespace: dict[str, Any], told: dict[str, str]) -> None:
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = _parsed(code, name)
        last = tree.body[-1] if tree.body else None
        shown = None
        if isinstance(last, ast.Expr):
            del tree.body[-1]
            shown = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
        body = compile(tree, name, "exec", dont_inherit=True)
    exec(body, namespace)  # noqa: S102  (that is what this process is for)
    value = eval(shown, namespace) if shown is not None else None  # noqa: S307
    if value is not None:
        told["value"] = repr(value)


def _parsed(code: str, name: str) -> ast.Module:
    """Whatever the parser stumbles over is a SyntaxError, in every version of Python."""
    try:
        return ast.parse(code, name)
    except (MemoryError, RecursionError):
        raise SyntaxError("too deeply nested") from None
    except UnicodeEncodeError:
        raise SyntaxError("a character that is half of a pair") from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None


def _guarded(action: Callable[[], None], code: str, told: dict[str, str]) -> int:
    """Do it; whatever it raises becomes one line of English. The exit code."""
    try:
        action()
    except SystemExit as stop:
        return _stopped(stop, told)
    except BaseException as error:  # noqa: BLE001  (code may raise anything)
        told.pop("value", None)
        told["error"] = _one_line(error, code)
        return OUT_OF_MEMORY if isinstance(error, MemoryError) else FAILED
    return 0


def _stopped(stop: SystemExit, told: dict[str, str]) -> int:
    """`sys.exit`: well without a code or with 0, else an error like others."""
    if stop.code is None or stop.code is False or stop.code == 0:
        return 0
    told.pop("value", None)
    told["error"] = f"SystemExit: {stop.code}"
    return FAILED


def _finish() -> None:
    """What an interpreter does at its end: wait for threads, call what was registered, write out what is buffered."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _one_line(error: BaseException, code: str) -> str:
    """`Kind: message (line n)`; the line only where the code has several."""
    kind = type(error).__name__
    try:
        message = error.msg if isinstance(error, SyntaxError) and error.msg else str(error)
    except BaseException:  # noqa: BLE001  (a __str__ of the code's own)
        message = ""
    line = _line(error)
    where = f" (line {line})" if line and "\n" in code.strip() else ""
    message = " ".join(message.split())[:_LONGEST_ERROR]
    return (f"{kind}: {message}" if message else kind) + where


def _line(error: BaseException) -> int:
    """Of the cell: of the innermost of its frames, or where it does not parse."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<cell>":
            line = trace.tb_lineno
        trace = trace.tb_next
    if not line and isinstance(error, SyntaxError) and error.filename == "<cell>":
        line = error.lineno or 0
    return line


def _cut(text: str, longest: int) -> str:
    """Head and tail, within a number of characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
