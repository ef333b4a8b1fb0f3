"""Reading the overrides of a Hydra training script: shell text, a plain list of `a.b=c`, or a table.

The shell is not run. Assignments of plain words are remembered and `$NAME`, `${NAME}`, `${NAME:-default}` and integer
arithmetic `$(( ))` are filled in; an override that needs more than that is an error which names the variable.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from arpo.errors import ConfigError

_OVERRIDE = re.compile(r"^(?:\+{0,2}|~)([A-Za-z_]\w*(?:\.\w+)+)=(.*)$", re.DOTALL)
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S.*|)$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)(?!\))")
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}


def from_text(text: str, source: str) -> dict[str, Any]:
    """Dotted key to value, in order of appearance; the last of each counts."""
    variables: dict[str, str] = {}
    found: dict[str, Any] = {}
    for number, line in _logical_lines(text):
        assignment = _ASSIGNMENT.match(line)
        if assignment:
            variables[assignment[1]] = _assigned(assignment[2], variables)
            continue
        for key, value in _overrides(line, variables, f"{source}, line {number}"):
            found[key] = value
    if not found:
        raise ConfigError(f"{source}: no override of the form a.b=value found; is this the training script?")
    return found


def from_table(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table (YAML, JSON or TOML of the same settings) as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= from_table(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments removed; the number is that of the first."""
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start if held else number
        stripped = line.rstrip()
        if stripped.endswith("\\"):
            held += stripped[:-1] + " "
            continue
        if not line.lstrip().startswith("#"):
            yield start, held + line
        held = ""
    if held:
        yield start, held


def _assigned(text: str, variables: Mapping[str, str]) -> str:
    """The value of an assignment; one that a command computes is kept as it stands, so that its use is noticed."""
    try:
        words = shlex.split(_calculated(text, variables), comments=True)
    except ValueError:
        return text
    return _filled(words[0], variables) if words else ""


def _overrides(line: str, variables: Mapping[str, str], where: str) -> Iterator[tuple[str, Any]]:
    for word in _words(_calculated(line, variables), where):
        match = _OVERRIDE.match(word)
        if match:
            value = _filled(match[2], variables)
            unset = _VARIABLE.search(value)
            if unset or "$(" in value:
                name = unset.group(0) if unset else value
                raise ConfigError(
                    f"{where}: {match[1]} uses {name}, which the script does not set to a plain value; write the value "
                    "into a copy of the file and convert that"
                )
            yield match[1], yaml_value(value)


def _words(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        if re.search(r"\w\.\w+=", line):
            raise ConfigError(f"{where}: cannot be read as a shell line ({error})") from error
        return []


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every known variable replaced."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name, match[0] if default is None else default)

    return _VARIABLE.sub(value, text)


def _calculated(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every `$(( ))` of known numbers worked out."""

    def value(match: re.Match[str]) -> str:
        names = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), _filled(match[1], variables))
        number = _integer(names)
        return match[0] if number is None else str(number)

    return _ARITHMETIC.sub(value, text)


def _integer(expression: str) -> int | None:
    """The value of an integer expression, None if it is anything else."""
    try:
        return _evaluate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right)))
    raise ValueError("not integer arithmetic")


def yaml_value(text: str) -> Any:
    """A Hydra value: number, flag, null, list or text; 1e-6 is a number."""
    try:
        return float(text) if re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", text) else yaml.safe_load(text)
    except yaml.YAMLError:
        return text
