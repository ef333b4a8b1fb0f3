"""One configuration out of several origins, with the origin of every value.

Precedence, the later winning: defaults, preset, files in the order given, environment, command line. Tables merge key
by key; a list replaces the earlier list; a table that switches its `type` starts from the new type's defaults, because
options of the old one would mean nothing there. Checking is strict: an unknown key, a number in quotes or a
contradiction is an error that says which value came from where.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from arpo.config.names import ALIASES, allows, annotation_at, item_annotation, models_in, nearest, tag_of, variant
from arpo.config.read import Layer, env_layers, file_layer, override_layers, preset_layer
from arpo.config.schema import Config
from arpo.errors import ConfigError

DEFAULT = "default"
Models = tuple[type[BaseModel], ...]


@dataclass(frozen=True)
class Resolved:
    """A valid configuration and, for each dotted name, where its value came from."""

    config: Config
    provenance: Mapping[str, str]

    def table(self) -> dict[str, Any]:
        """Nested plain values that `load` reads back into an equal configuration, from TOML too.

        TOML has no null: an absent value is left out where it is the default and written "none" where it is not.
        """
        return _without_null(self.config.model_dump(mode="json"), type(self.config))


def load(
    files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    *,
    preset: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Resolve a configuration. `overrides`: `table.key=value`; `environ`: the process's by default.

    A file may name its `preset` at the top level. Raises ConfigError naming the key, the value and its origin.
    """
    layers = [file_layer(path) for path in files]
    named = [layer.values["preset"] for layer in layers if "preset" in layer.values]
    preset = preset or (named[-1] if named else None)
    layers = [Layer(layer.source, {k: v for k, v in layer.values.items() if k != "preset"}) for layer in layers]
    below = [preset_layer(preset)] if preset else []
    return resolve(below + layers + env_layers(os.environ if environ is None else environ) + override_layers(overrides))


def resolve(layers: Sequence[Layer]) -> Resolved:
    """Merge the layers over the defaults and check the result."""
    values = Config().model_dump(mode="json")
    origin: dict[str, str] = {}
    for layer in layers:
        _Merge(layer.source, origin).table((Config,), values, layer.values, "")
    try:
        config = Config.model_validate_json(json.dumps(values, default=_plain), strict=True)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error, values, origin))) from error
    names = dict(flat(config.model_dump(mode="json")))
    return Resolved(config, {name: _origin_of(name, origin) for name in names})


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every leaf, in order; tables in lists are numbered."""
    for key, value in table.items():
        yield from _flat_value(f"{prefix}{key}", value)


def _flat_value(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        yield from flat(value, f"{name}.")
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for position, item in enumerate(value):
            yield from _flat_value(f"{name}.{position}", item)
    else:
        yield name, value


@dataclass(frozen=True)
class _Merge:
    """Lays one layer over the values so far, in place, and notes where each new value came from."""

    source: str
    origin: dict[str, str]

    def table(self, models: Models, base: dict[str, Any], new: Any, name: str) -> None:
        if not isinstance(new, Mapping):
            raise ConfigError(f"{self.source}: {name} = {new!r}: expected a table of settings")
        if "type" in new and new["type"] != base.get("type"):
            self._forget(name)
            base.clear()
            base["type"] = new["type"]
        model = variant(models, base)
        if model is None:
            raise ConfigError(self._no_variant(models, base, name))
        for key, value in new.items():
            self._field(model, models, base, key, value, f"{name}.{key}" if name else str(key))

    def _field(
        self, model: type[BaseModel], models: Models, base: dict[str, Any], key: str, value: Any, name: str
    ) -> None:
        if key not in model.model_fields:
            raise ConfigError(self._unknown(model, models, key, name))
        annotation = model.model_fields[key].annotation
        item = item_annotation(annotation)
        if item is not None:
            base[key] = self._items(models_in(item), base.get(key) or [], value, name)
        elif models_in(annotation) and not (value in (None, "none") and allows(annotation, type(None))):
            if not isinstance(base.get(key), dict):
                base[key] = {}
            self.table(models_in(annotation), base[key], value, name)
        else:
            self._forget(name)
            base[key] = _absent(value, annotation)
            self.origin[name] = self.source

    def _items(self, models: Models, base: list[Any], value: Any, name: str) -> list[Any]:
        """A list replaces the list; a table of positions (from `tools.0.top_k=3`) changes single items."""
        if isinstance(value, Mapping):
            for position, item in value.items():
                self._item(models, base, str(position), item, name)
            return base
        if not isinstance(value, list):
            raise ConfigError(f"{self.source}: {name} = {value!r}: expected a list of tables")
        self._forget(name)
        fresh: list[Any] = []
        for position, item in enumerate(value):
            self._item(models, fresh, str(position), item, name)
        if not fresh:
            self.origin[name] = self.source
        return fresh

    def _item(self, models: Models, base: list[Any], position: str, item: Any, name: str) -> None:
        if not position.isdigit() or int(position) > len(base):
            raise ConfigError(
                f"{self.source}: {name}.{position}: {name} is a list of {len(base)}; use a position from 0 to "
                f"{len(base)} (the last adds one)"
            )
        if int(position) == len(base):
            base.append({})
        self.table(models, base[int(position)], item, f"{name}.{position}")

    def _forget(self, name: str) -> None:
        for known in [known for known in self.origin if known == name or known.startswith(f"{name}.")]:
            del self.origin[known]

    def _no_variant(self, models: Models, base: Mapping[str, Any], name: str) -> str:
        choices = ", ".join(f'"{tag_of(model)}"' for model in models)
        given = f"{name}.type = {base['type']!r}" if "type" in base else f"{name} has no type"
        guess = nearest(str(base.get("type")), tuple(str(tag_of(model)) for model in models))
        hint = f'did you mean "{guess}"? ' if guess else ""
        return f"{self.source}: {given}; {hint}choose one of {choices}"

    def _unknown(self, model: type[BaseModel], models: Models, key: str, name: str) -> str:
        owners = [f'"{tag_of(other)}"' for other in models if key in other.model_fields]
        table = name.rpartition(".")[0]
        if owners:
            return (
                f'{self.source}: {name} belongs to {table}.type = {" or ".join(owners)}; here it is "{tag_of(model)}"'
            )
        own = tuple(f"{table}.{field}" if table else field for field in model.model_fields)
        guess = (nearest(name, own) if key not in ALIASES else None) or nearest(name)
        hint = f"; did you mean {guess}?" if guess else f"; {table or 'the top level'} knows: {', '.join(own)}"
        return f"{self.source}: unknown key {name}{hint}"


def _absent(value: Any, annotation: Any) -> Any:
    """None for the written forms of "no value" where no value is allowed."""
    return None if value in ("none", "null") and allows(annotation, type(None)) else value


def _plain(value: Any) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)


def _origin_of(name: str, origin: Mapping[str, str]) -> str:
    """The origin of a value, or of the list or table that it was given in."""
    parts = name.split(".")
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((origin[prefix] for prefix in prefixes if prefix in origin), DEFAULT)


def _complaints(error: ValidationError, values: Mapping[str, Any], origin: Mapping[str, str]) -> Iterator[str]:
    """One line per mistake: key, value, origin, what was expected."""
    given = dict(flat(values))
    for item in error.errors(include_url=False):
        name = _dotted(item["loc"])
        message = item["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        if item["type"] == "missing":
            yield f"{name} is not set and has no default: give it a value"
        elif name in given:
            yield f"{name} = {given[name]!r} ({_origin_of(name, origin)}): {message}"
        else:
            where = _mentioned(message, name, given, origin)
            yield f"{name + ': ' if name else ''}{message}{f' [{where}]' if where else ''}"


def _dotted(loc: Sequence[str | int]) -> str:
    """A place in the models as a dotted name: without the union tags that pydantic puts in between."""
    name = ""
    for part in loc:
        longer = f"{name}.{part}" if name else str(part)
        name = longer if annotation_at(longer) is not None else name
    return name


def _mentioned(message: str, table: str, given: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    """Value and origin of the settings that a message names, by full name or by their name within the table."""
    words = set(re.findall(r"[A-Za-z_][\w.]*\w", message))
    names = [name for name in given if name in words or (table and name.removeprefix(f"{table}.") in words)]
    return "; ".join(f"{name} = {given[name]!r}: {_origin_of(name, origin)}" for name in names)


def _without_null(table: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in table.items():
        field = model.model_fields[key]
        if value is None:
            if field.get_default(call_default_factory=True) is not None:
                plain[key] = "none"
        else:
            plain[key] = _plain_value(value, field.annotation)
    return plain


def _plain_value(value: Any, annotation: Any) -> Any:
    item = item_annotation(annotation)
    if item is not None:
        return [_plain_value(one, item) for one in value]
    model = variant(models_in(annotation), value) if models_in(annotation) else None
    return value if model is None else _without_null(value, model)
