"""From files, environment and command line to nested tables of plain values, with the place each came from.

Values on the command line are typed by the setting they are meant for: `run.name=7` is a text, `rollout.total=7` a
number. A list is written `a,b` or `[a, b]`, an absent value `none`.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from arpo.config.names import allows, annotation_at
from arpo.errors import ConfigError

_Value = TypeVar("_Value")
PREFIX = "ARPO_"
"""Environment: ARPO_ROLLOUT__TOTAL=16 sets rollout.total. Names without a double underscore are no settings."""


@dataclass(frozen=True)
class Layer:
    """Nested tables of one origin; later layers win."""

    source: str
    values: Mapping[str, Any]


class _Yaml(yaml.SafeLoader):
    """YAML 1.2 numbers: 1e-6 is a float (PyYAML by itself reads a text)."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def file_layer(path: str | Path) -> Layer:
    """A TOML, YAML or JSON file. Keys may be dotted in each of them."""
    return Layer(str(path), _nested(read_table(Path(path)), str(path)))


def read_table(path: Path) -> dict[str, Any]:
    """The top-level table of a file. Raises ConfigError with the file's name."""
    try:
        return parse_table(path.read_text(encoding="utf-8-sig"), path.suffix, str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such config file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error


def parse_table(text: str, suffix: str, source: str) -> dict[str, Any]:
    """A table from text in the format that `suffix` names."""
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".yaml": _load_yaml,
        ".yml": _load_yaml,
    }
    if suffix not in readers:
        raise ConfigError(f"{source}: a config file ends in {', '.join(readers)}, not {suffix or 'nothing'!r}")
    try:
        table = readers[suffix](text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: not valid {suffix[1:].upper()}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: expected a table of settings at the top, found {type(table).__name__}")
    return table


def _load_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Yaml) or {}


def preset_names() -> list[str]:
    """The packaged presets."""
    folder = resources.files("arpo.config") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def preset_layer(name: str) -> Layer:
    """A packaged preset by name."""
    if name not in preset_names():
        raise ConfigError(f"no preset named {name!r}; there are: {', '.join(preset_names())}")
    text = (resources.files("arpo.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return Layer(f"preset {name}", parse_table(text, ".toml", f"preset {name}"))


def env_layers(environ: Mapping[str, str]) -> list[Layer]:
    """One layer per ARPO_TABLE__KEY variable."""
    given = {
        key.removeprefix(PREFIX).lower().replace("__", "."): (key, value)
        for key, value in sorted(environ.items())
        if key.startswith(PREFIX) and "__" in key
    }
    return [
        Layer(f"environment {key}", nest(name, value, typed=True))
        for name, (key, value) in _types_first(list(given.items()))
    ]


def override_layers(overrides: Sequence[str], source: str = "command line") -> list[Layer]:
    """One layer per `dotted.name=value`, in order, but for a table's `type`, which comes before its options."""
    given = _types_first([_split(override) for override in overrides])
    return [Layer(source, nest(name, value, typed=True)) for name, value in given]


def _types_first(given: list[tuple[str, _Value]]) -> list[tuple[str, _Value]]:
    """Dotted names and values in order, a `type` moved ahead of its table's options.

    A new type starts from its own defaults, so an option that is given with it must not come before it.
    """
    ordered: list[tuple[str, _Value]] = []
    for name, value in given:
        table = name.removesuffix("type") if name.endswith(".type") else None
        options = [i for i, (other, _) in enumerate(ordered) if table and other.startswith(table) and other != name]
        ordered.insert(options[0] if options else len(ordered), (name, value))
    return ordered


def _split(override: str) -> tuple[str, str]:
    name, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", name.strip()):
        raise ConfigError(f"override {override!r} is not of the form table.key=value")
    return name.strip(), value.strip()


def nest(name: str, value: Any, typed: bool = False) -> dict[str, Any]:
    """{"a": {"b": value}} for "a.b"; with `typed` a text is read as what the setting expects."""
    value = _typed(value, annotation_at(name)) if typed else value
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def _typed(text: str, annotation: Any) -> Any:
    """The value that `text` means for a setting of this type; unknown settings keep what TOML makes of it."""
    parsed = _toml_value(text)
    if allows(annotation, tuple) and not isinstance(parsed, list) and text.lower() not in ("none", "null"):
        inner = text.removeprefix("[").removesuffix("]")
        return [_toml_value(part.strip()) for part in inner.split(",") if part.strip()]
    if isinstance(parsed, str) or not allows(annotation, str) or allows(annotation, type(parsed)):
        return parsed
    return text


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


def _nested(table: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Dotted keys at the top level as nested tables."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        _graft(result, nest(str(key), value), source)
    return result


def _graft(tree: dict[str, Any], branch: Mapping[str, Any], source: str) -> None:
    for key, value in branch.items():
        if key not in tree:
            tree[key] = dict(value) if isinstance(value, dict) else value
        elif isinstance(tree[key], dict) and isinstance(value, dict):
            _graft(tree[key], value, source)
        else:
            raise ConfigError(f"{source}: {key!r} is given twice")
