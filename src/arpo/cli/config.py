"""`arpo config`: look at a resolved configuration, convert one from another project."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from arpo.cli.options import Configs, Options, resolve

app = App(name="config", help="Show the resolved configuration, or convert one from another project.")


@app.command
def show(
    *config: Configs,
    options: Options | None = None,
    json: Annotated[bool, Parameter(negative="", help="For programs: {name: {value, from}}.")] = False,
) -> int:
    """Print every setting with its value and where the value came from."""
    from arpo.config import show as render

    resolved = resolve(config, options or Options())
    if json:
        print(render.to_json(resolved))
    elif sys.stdout.isatty():
        _table(list(render.rows(resolved)))
    else:
        print(render.to_toml(resolved), end="")
    return 0


def _table(rows: list[tuple[str, object, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name, value, origin in rows:
        table.add_row(name, json.dumps(value), origin, style="dim" if origin == "default" else None)
    Console().print(table)


@app.command
def convert(
    file: Annotated[
        Path, Parameter(help="The compact template (TOML, JSON, YAML) or a training script (.sh, .txt, YAML).")
    ],
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="Write here instead of standard output.")
    ] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace the output file.")] = False,
) -> int:
    """Turn another project's configuration into a config file of this one."""
    from arpo.config.convert import convert as read
    from arpo.config.convert import write

    conversion = read(file)
    if output is None:
        print(conversion.to_toml(), end="")
    else:
        write(conversion, output, overwrite)
    for note in conversion.notes:
        print(f"note: {note}", file=sys.stderr)
    for key, reason in conversion.unmapped.items():
        print(f"not converted: {key} ({reason})", file=sys.stderr)
    return 0
