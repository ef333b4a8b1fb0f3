"""`arpo compare`: methods against each other at equal cost."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def compare(
    *config: Annotated[
        str, Parameter(name="CONFIG", help="The environment (TOML, YAML, JSON), and overrides (table.key=value).")
    ],
    methods: Annotated[
        str, Parameter(help="Presets or config files, comma-separated; the first is the reference.")
    ] = "grpo,dapo,reinforce++,paper,tree",
    seeds: Annotated[int, Parameter(help="Runs per method.")] = 5,
    out: Annotated[Path, Parameter(help="The folder of all runs and of the report.")] = Path("runs/compare"),
    jobs: Annotated[int | None, Parameter(help="Runs at once, one thread each. Default: one per core.")] = None,
    resume: Annotated[bool, Parameter(negative="", help="Go on with an interrupted comparison.")] = False,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace an earlier comparison.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Warnings and errors only.")] = False,
) -> int:
    """Train several methods with several seeds on one environment; compare at equal tokens and at equal tool calls.

    Without CONFIG: the pocket policy on the built-in factbook (hours on two cores; it can be interrupted and resumed).
    """
    from arpo.cli.options import is_override
    from arpo.compare.run import run
    from arpo.errors import ConfigError

    files = [one for one in config if not is_override(one)]
    if len(files) > 1:
        raise ConfigError(f"a comparison has one environment file, not {len(files)}: {', '.join(files)}")
    return run(
        out,
        files[0] if files else None,
        tuple(name.strip() for name in methods.split(",") if name.strip()),
        seeds=seeds,
        overrides=tuple(one for one in config if is_override(one)),
        at_once=jobs,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
    )
