"""The value of a last expression, for interpreters that do not show it by themselves."""

import ast
import warnings


def show_last_value(code: str) -> str:
    """`code`, changed so that the value of a last expression is printed unless it is None, inside the sandbox.

    Inside, because there the limits hold: a value that is small in memory may have an endless representation. Code that
    does not parse is returned unchanged, for the sandbox to say so. The text is parsed here, never compiled or run.
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    if not body or not isinstance(body[-1], ast.Expr):
        return code
    start, end = _span(code, body[-1])
    data = code.encode()
    value = data[start:end].decode()
    return f"{data[:start].decode()}_value_ = ({value})\nif _value_ is not None:\n    print(repr(_value_))\n"


def _span(code: str, node: ast.stmt) -> tuple[int, int]:
    """Byte offsets of a statement in the encoded code."""
    starts = [0]
    for line in code.split("\n"):
        starts.append(starts[-1] + len(line.encode()) + 1)
    last_line, last_column = node.end_lineno, node.end_col_offset
    assert last_line is not None
    assert last_column is not None
    return starts[node.lineno - 1] + node.col_offset, starts[last_line - 1] + last_column
