"""What a conversion collects: values with their origin, notes, and what was left behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo.config.load import Resolved, resolve
from arpo.config.read import Layer
from arpo.config.show import toml_value


@dataclass
class Conversion:
    """A converted configuration under construction. `origin`: dotted name to the key it was read from."""

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unmapped: dict[str, str] = field(default_factory=dict)
    """Source key, with its value where that may be shown, to the reason why it is not converted."""

    def put(self, name: str, value: Any, source: str) -> None:
        """Set a dotted name; a later source of the same name wins, as it does in the original."""
        self.values[name] = value
        self.origin[name] = source

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def resolved(self, source: str) -> Resolved:
        """The whole configuration that this amounts to; raises ConfigError if it is contradictory."""
        return resolve([Layer(source, self.tables())])

    def tables(self) -> dict[str, Any]:
        """The converted values as nested tables."""
        root: dict[str, Any] = {}
        for name, value in self.values.items():
            *path, key = name.split(".")
            table = root
            for part in path:
                table = table.setdefault(part, {})
            table[key] = value
        return root

    def to_toml(self) -> str:
        """A config file whose comments say where each value came from, then notes and what was left behind."""
        lines = list(_table_lines(self.tables(), "", self.origin))
        lines += [""] + [f"# Note: {note}" for note in self.notes] if self.notes else []
        if self.unmapped:
            lines += ["", "# Without a counterpart here:"]
            lines += [f"#   {key}: {reason}" for key, reason in self.unmapped.items()]
        return "\n".join(lines).strip() + "\n"


def _table_lines(table: Mapping[str, Any], name: str, origin: Mapping[str, str]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = ["", f"[{name}]"] if plain and name else []
    for key, value in sorted(plain.items(), key=lambda item: item[0] != "type"):
        source = origin[f"{name}.{key}" if name else key]
        lines.append(f"{key} = {toml_value(value)}  # {source}")
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _table_lines(value, f"{name}.{key}" if name else key, origin)
    return lines
