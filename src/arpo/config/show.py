"""A resolved configuration for people and programs: TOML with origins as comments, rows for a table, JSON."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from arpo.config.load import Resolved, flat


def to_toml(resolved: Resolved) -> str:
    """A config file that loads back to the same configuration; each value's origin stands in a comment."""
    return "\n".join(_lines(resolved.table(), "", resolved.provenance)).strip() + "\n"


def to_json(resolved: Resolved) -> str:
    """{dotted name: {"value", "from"}}."""
    return json.dumps({name: {"value": value, "from": origin} for name, value, origin in rows(resolved)}, indent=2)


def rows(resolved: Resolved) -> Iterator[tuple[str, Any, str]]:
    """(dotted name, value, origin) of every setting, in order."""
    for name, value in flat(resolved.config.model_dump(mode="json")):
        yield name, value, resolved.provenance[name]


def _lines(table: Mapping[str, Any], name: str, provenance: Mapping[str, str]) -> Iterator[str]:
    below = {key: value for key, value in table.items() if _is_table(value) or _is_tables(value)}
    for key, value in table.items():
        if key not in below:
            yield f"{key} = {toml_value(value)}  # {_origin(f'{name}.{key}' if name else key, provenance)}"
    for key, value in below.items():
        path = f"{name}.{key}" if name else key
        if _is_table(value):
            yield from ("", f"[{_header(path)}]")
            yield from _lines(value, path, provenance)
        else:
            for position, item in enumerate(value):
                yield from ("", f"[[{_header(path)}]]")
                yield from _lines(item, f"{path}.{position}", provenance)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _header(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _origin(name: str, provenance: Mapping[str, str]) -> str:
    """The value's origin; an empty table has none of its own."""
    return provenance.get(name, "default")


def toml_value(value: Any) -> str:
    """One value in TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{toml_value(str(key))} = {toml_value(item)}' for key, item in value.items())}}}"
    return repr(value)
