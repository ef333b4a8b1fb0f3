"""What servers offer, as tools of a run; and whether it is still the same.

A policy is taught on names, descriptions and schemas, so they must not change under it. They are read once when the
tools are built; every later connection must offer the same; and a file (`freeze`) carries them from one run to the
next. A schema is taken strictly: an argument that it does not name is refused by us, since servers built on the SDK
drop it without a word. A schema that points outside of itself is refused, since following it would fetch what a server
names.
"""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from mcp import types

from arpo.errors import ToolSetupError
from arpo.tools.results import cap, clean

NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,128}")
"""A tool's name."""
_COMPOSED = ("allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas")
"""Keywords that bring in parameters from elsewhere in the schema."""
_REMEDY = "leave it out by naming the others in `tools`"
_REASON = 300
"""Characters of a reason that are shown."""
_DIFFERENCE = 4000
"""Characters of a difference that are shown."""


@dataclass(frozen=True)
class Offer:
    """A tool of a server: as it said it (`raw`), and as a policy may read it. `repeatable`: its annotations' word."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    raw: Mapping[str, Any]
    repeatable: bool

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with anything that a policy reads of the tool."""
        return hashlib.sha256(_canonical(self.raw).encode()).hexdigest()[:16]


def offers(server: str, listed: Iterable[types.Tool], wanted: Sequence[str]) -> dict[str, Offer]:
    """The tools by name, in the server's order, only those `wanted` if any are. Raises ToolSetupError."""
    chosen = [tool for tool in listed if not wanted or tool.name in wanted]
    return {tool.name: _offer(server, tool) for tool in chosen}


def _offer(server: str, tool: types.Tool) -> Offer:
    where = f"MCP server {server!r}: tool {clean(tool.name)!r}"
    if not NAME.fullmatch(tool.name):
        raise ToolSetupError(f"{where}: its name is not made of 1 to 128 letters, digits and _ . - /; {_REMEDY}")
    if outside := sorted(set(_pointers(tool.input_schema))):
        raise ToolSetupError(f"{where}: its schema points outside of itself ({clean(outside[0])}); {_REMEDY}")
    if (wrong := _wrong_with(tool.input_schema)) is not None:
        raise ToolSetupError(f"{where}: its schema is of no use ({clean(wrong)}); {_REMEDY}")
    hints = tool.annotations
    return Offer(
        name=tool.name,
        description=clean(tool.description or ""),
        parameters=_strict(_cleaned(tool.input_schema)),
        raw={"description": tool.description or "", "parameters": tool.input_schema},
        repeatable=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint),
    )


def _wrong_with(schema: dict[str, Any]) -> str | None:
    """What is wrong with a schema, or what goes wrong when arguments are checked against it: a pattern that is no
    regular expression, a reference to nothing or to itself. None if nothing does.
    """
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        samples: tuple[Any, ...] = ("", 0, [], {}, None)
        for value in samples:
            list(validator.iter_errors(dict.fromkeys(schema.get("properties", ()), value)))
    except jsonschema.SchemaError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - the library has no common error for what a schema can do to it
        return cap(f"{type(error).__name__}: {error}", _REASON)
    return None


def _pointers(schema: Any) -> Iterable[str]:
    """References to other documents."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
                yield value
            yield from _pointers(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from _pointers(one)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): _cleaned(one) for key, one in value.items()}
    return [_cleaned(one) for one in value] if isinstance(value, list) else value


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown arguments refused, unless it says something about them itself."""
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return schema
    composed = any(key in schema for key in _COMPOSED)
    return {**schema, "unevaluatedProperties" if composed else "additionalProperties": False}


def check_same(server: str, before: Mapping[str, Offer], now: Mapping[str, Offer], source: str, remedy: str) -> None:
    """ToolSetupError with the difference if the two offer anything else. `source`: where `before` comes from."""
    old, new = ({name: offer.raw for name, offer in one.items()} for one in (before, now))
    if _canonical(old) == _canonical(new):
        return
    lines = difflib.unified_diff(_pretty(old), _pretty(new), source, f"server {server}", lineterm="", n=2)
    difference = cap(clean("\n".join(lines)), _DIFFERENCE)
    raise ToolSetupError(f"MCP server {server!r} offers other tools than in {source}; {remedy}\n{difference}")


def check_frozen(path: str, offered: Mapping[str, Mapping[str, Offer]]) -> None:
    """Compare what all servers offer with the file, which is written if there is none. ToolSetupError if it differs."""
    now = {server: {name: offer.raw for name, offer in tools.items()} for server, tools in offered.items()}
    file = Path(path)
    if not file.exists():
        _write(file, {"servers": now})
        return
    frozen = _frozen(file)
    for server in sorted({*frozen, *offered}):
        before = {name: _from_raw(name, raw) for name, raw in frozen.get(server, {}).items()}
        remedy = f"delete {path} to take what it offers now (what was trained before is then not comparable)"
        check_same(server, before, offered.get(server, {}), path, remedy)


def _frozen(file: Path) -> dict[str, dict[str, Mapping[str, Any]]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {server: dict(tools) for server, tools in content["servers"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolSetupError(
            f"{file}: is no file of frozen tools ({error}); delete it to have it written anew"
        ) from error


def _from_raw(name: str, raw: Mapping[str, Any]) -> Offer:
    return Offer(name, "", {}, raw, False)


def _write(file: Path, content: Any) -> None:
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=True) + "\n", encoding="utf-8")
        os.replace(partial, file)
    except OSError as error:
        raise ToolSetupError(f"freeze = {str(file)!r}: cannot be written: {error}") from error


def _pretty(tools: Any) -> list[str]:
    return json.dumps(tools, indent=2, sort_keys=True, ensure_ascii=False).splitlines()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
