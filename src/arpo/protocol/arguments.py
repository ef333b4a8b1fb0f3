"""From what a policy wrote to arguments that fit a tool's schema, or to a fault that says where they do not.

A dialect with types gets types wrong: `"5"` for 5, `5.0` for 5, a list inside a string. Such a value is converted where
the conversion loses nothing and the schema leaves one reading only; anything else is a fault with the path in the
arguments, for the policy to read. Arguments that the tool does not have are refused or dropped, as the settings say,
and never passed on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema

from arpo.protocol.base import Call, ParseCode, ToolSpec
from arpo.protocol.tolerant import UnreadableError, strictly, unfenced

PREFIXES = ("functions.", "tools.", "default_api.")
"""Name spaces that models put before a tool's name; stripped if what is left is a tool."""
_LONGEST_DETAIL = 200
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,17})?(?:[eE][+-]?\d{1,2})?")
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = ("null", "None")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why something that was meant as a call is none. `detail`: a sentence for the policy; empty: the code says all."""

    code: ParseCode
    detail: str = ""


class Schemas:
    """The tools of a run, by name: resolves names and fits arguments."""

    def __init__(self, tools: Sequence[ToolSpec], unknown: Literal["reject", "drop"] = "reject") -> None:
        self._unknown = unknown
        self.parameters = {tool.name: dict(tool.parameters) for tool in tools}
        self._validators = {name: jsonschema.Draft202012Validator(schema) for name, schema in self.parameters.items()}

    def resolve(self, name: str) -> str | None:
        """The tool that `name` means, a known name space before it stripped; None if there is none."""
        if name in self.parameters:
            return name
        stripped = (name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix))
        return next((candidate for candidate in stripped if candidate in self.parameters), None)

    def property_schema(self, tool: str, argument: str) -> Mapping[str, Any]:
        """What the schema says of one argument; empty if nothing."""
        found = self.parameters[tool].get("properties", {}).get(argument, {})
        return found if isinstance(found, Mapping) else {}

    def sole_text(self, tool: str) -> str | None:
        """The one required string parameter of a tool that needs nothing else; None if it is of another kind."""
        schema = self.parameters.get(tool, {})
        properties = schema.get("properties", {})
        required = list(schema.get("required", properties))
        sole = len(required) == 1 and properties.get(required[0], {}).get("type") == "string"
        return str(required[0]) if sole else None

    def fit(self, name: str, arguments: Mapping[str, Any], repaired: Sequence[str] = ()) -> Call | Fault:
        """The call that `name` with `arguments` is. `repaired`: what was mended before."""
        tool = self.resolve(name)
        if tool is None:
            return Fault(ParseCode.UNKNOWN_TOOL)
        notes = [*repaired, *(["prefix"] if tool != name else [])]
        if self._is_empty(tool, arguments):
            return Fault(ParseCode.EMPTY_ARGS)
        kept, more = self._known(tool, arguments)
        if isinstance(kept, Fault):
            return kept
        plain = _unfenced(kept, more)
        fitted = coerced(plain, self.parameters[tool])
        more += ["types"] if _types_of(fitted) != _types_of(plain) else []
        return self._wrong(tool, fitted) or Call(tool, fitted, ", ".join([*notes, *more]) or None)

    def _is_empty(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """True if the tool needs something and every argument is missing or blank."""
        blank = all(isinstance(value, str) and not value.strip() for value in arguments.values())
        return blank and bool(self.parameters[tool].get("required"))

    def _known(self, tool: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any] | Fault, list[str]]:
        """The arguments that the tool has. A schema that allows others by name keeps them."""
        schema = self.parameters[tool]
        known = schema.get("properties", {})
        if schema.get("additionalProperties", False) is not False or schema.get("patternProperties"):
            return dict(arguments), []
        strange = [argument for argument in arguments if argument not in known]
        if strange and self._unknown == "reject":
            names = ", ".join(known) or "none"
            detail = _short(f"{tool} has no argument {strange[0]!r}; it has: {names}.")
            return Fault(ParseCode.INVALID_ARGS, detail), []
        kept = {argument: value for argument, value in arguments.items() if argument in known}
        return kept, ["dropped"] if strange else []

    def _wrong(self, tool: str, arguments: Mapping[str, Any]) -> Fault | None:
        error = jsonschema.exceptions.best_match(self._validators[tool].iter_errors(arguments))
        if error is None:
            return None
        detail = _short(f"Wrong arguments for {tool} at {error.json_path}: {error.message}")
        return Fault(ParseCode.INVALID_ARGS, detail + ("" if detail.endswith(".") else "."))


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value`, with what the schema's types make of it without loss; unchanged where they do not apply."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return {key: coerced(item, _mapping(properties.get(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [coerced(item, _mapping(schema.get("items"))) for item in value]
    types = types_in(schema)
    if isinstance(value, str):
        return value if "string" in types else _from_text(value, types)
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and types == {"string"}:
        return str(value)
    return value


def types_in(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema names, in its alternatives too; empty if it names none."""
    named = schema.get("type", [])
    types = {named} if isinstance(named, str) else set(named)
    for union in ("anyOf", "oneOf"):
        for option in schema.get(union) or []:
            types |= types_in(_mapping(option))
    return types


def _from_text(text: str, types: set[str]) -> Any:
    """What a string says under the only types that are allowed; the string itself if it says none of them."""
    bare = text.strip()
    if "integer" in types and _INTEGER.fullmatch(bare):
        return int(bare)
    if "number" in types and _NUMBER.fullmatch(bare):
        return int(bare) if _INTEGER.fullmatch(bare) else float(bare)
    if "boolean" in types and bare in _WORDS:
        return _WORDS[bare]
    if "null" in types and bare in _NULLS:
        return None
    for name, kind in (("object", dict), ("array", list)):
        if name in types:
            try:
                value = strictly(bare)
            except UnreadableError:
                return text
            if isinstance(value, kind):
                return value
    return text


def _unfenced(arguments: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """`arguments` with one outer code fence taken off `code`; `notes` is told."""
    inner = unfenced(arguments["code"]) if isinstance(arguments.get("code"), str) else None
    if inner is None:
        return arguments
    notes.append("fence")
    return {**arguments, "code": inner}


def _types_of(value: Any) -> Any:
    """The types in a value; tells 5 from 5.0 and 1 from True, which are equal."""
    if isinstance(value, dict):
        return {key: _types_of(item) for key, item in value.items()}
    return [_types_of(item) for item in value] if isinstance(value, list) else type(value)


def _mapping(schema: Any) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 3] + "..."
