"""Arguments of a call that come as text: from a shell, each read as the tool's schema wants it.

A shell knows only text, a schema knows types. A value that the schema takes as it stands stays text, even if it looks
like a number; otherwise it is read as JSON, and what loses nothing by it becomes what is wanted (`5.0` an integer,
`True` a boolean). Everything else is refused with the parameter's name, before anything runs.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema

from arpo.errors import ArpoError
from arpo.tools.base import Tool

_SHARED = ("$defs", "definitions")
"""Parts of a schema that the schema of one parameter may point to."""


class ArgumentError(ArpoError):
    """An argument on the command line that the tool's schema does not know or does not take."""


def from_text(tool: Tool, pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs as the arguments of `tool`. Raises ArgumentError naming the tool and the key."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ArgumentError(f"--arg {pair!r}: give it as key=value")
        if key in arguments:
            raise ArgumentError(f"--arg {key}: it is given twice")
        arguments[key] = value(tool, key, text)
    return arguments


def value(tool: Tool, key: str, text: str) -> Any:
    """`text` as the parameter `key` of `tool`. Raises ArgumentError if there is none, or if it does not take it."""
    schema = _schema_of(tool, key)
    for reading in _readings(text):
        if schema.is_valid(reading):
            return reading
    wanted = _wanted(schema, text)
    raise ArgumentError(f"--arg {key}: tool {tool.name!r} does not take {text!r} here: {wanted}")


def text_parameter(tool: Tool, given: Iterable[str] = ()) -> str:
    """The one parameter of `tool`, besides those already `given`, that takes any text. ArgumentError if not just one.

    A required one goes before optional ones.
    """
    taken, required = set(given), set(tool.parameters.get("required", ()))
    able = [key for key in _properties(tool) if key not in taken and _takes_any_text(tool, key)]
    for keys in ([key for key in able if key in required], able):
        if len(keys) == 1:
            return keys[0]
        if keys:
            break
    found = f"it has {', '.join(able)}" if able else "it has none"
    raise ArgumentError(
        f"--file: tool {tool.name!r} needs exactly one parameter that takes a text, and {found}; use --arg"
    )


def _takes_any_text(tool: Tool, key: str) -> bool:
    return _schema_of(tool, key).is_valid("any text, in\nlines")


def _properties(tool: Tool) -> Mapping[str, Any]:
    return tool.parameters.get("properties", {})


def _schema_of(tool: Tool, key: str) -> jsonschema.Draft202012Validator:
    known, rest = _properties(tool), tool.parameters.get("additionalProperties", False)
    if key not in known and not rest:
        raise ArgumentError(
            f"--arg {key}: tool {tool.name!r} has no such parameter; there is: {', '.join(known) or 'none'}"
        )
    own = known.get(key, rest)
    shared = {name: tool.parameters[name] for name in _SHARED if name in tool.parameters}
    return jsonschema.Draft202012Validator({**shared, **own} if isinstance(own, Mapping) else own)


def _readings(text: str) -> Iterator[Any]:
    """What a text may stand for, the plainest first."""
    yield text
    if text.lower() in ("true", "false"):
        yield text.lower() == "true"
    try:
        read = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except ValueError:
        return
    if isinstance(read, float) and read.is_integer():
        yield int(read)
    yield read


def _finite(number: str) -> float:
    if not math.isfinite(read := float(number)):
        raise ValueError(f"{number} is too large")
    return read


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _wanted(schema: jsonschema.Draft202012Validator, text: str) -> str:
    """Why the reading that comes closest is refused."""
    closest = list(_readings(text))[-1]
    error = jsonschema.exceptions.best_match(schema.iter_errors(closest))
    return error.message if error is not None else "it does not fit the tool's schema"
