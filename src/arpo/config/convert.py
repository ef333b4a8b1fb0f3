"""Configurations that people already have, in this project's names.

Two sources: the compact template (`arpo.entropy_monitor`, `arpo.adaptive_branch`, ...; `arpo.config.template`) and the
official training script with its Hydra overrides (`arpo.config.script`). Whatever has no counterpart is listed with
the reason, and what means something slightly different here is said in a note: nothing is dropped silently. The result
is checked like any configuration before it is handed out.
"""

from pathlib import Path

from arpo.config import script, template
from arpo.config.conversion import Conversion
from arpo.config.read import parse_table
from arpo.errors import ConfigError, StorageError

_TABLE_FILES = (".toml", ".json", ".yaml", ".yml")


def convert(path: Path) -> Conversion:
    """Convert a file of either kind. Raises ConfigError naming the file and the key."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    table = parse_table(text, path.suffix, str(path)) if path.suffix in _TABLE_FILES else None
    if table is not None and template.is_template(table):
        conversion = template.convert(table, str(path))
    else:
        overrides = script.from_text(text, str(path)) if table is None else script.from_table(table)
        conversion = script.convert(overrides, path)
    conversion.resolved(str(path))
    return conversion


def write(conversion: Conversion, output: Path, overwrite: bool = False) -> None:
    """Write the converted config file. An existing file is kept unless `overwrite`."""
    if output.exists() and not overwrite:
        raise ConfigError(f"{output} exists: choose another name or pass --overwrite")
    try:
        output.write_text(conversion.to_toml(), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{output}: cannot be written ({error.strerror})") from error
