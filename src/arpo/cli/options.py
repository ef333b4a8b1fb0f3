"""What all commands with a configuration share: files, overrides and short-hands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from arpo.config.load import Resolved, load

Configs = Annotated[
    str, Parameter(name="CONFIG", help="Config files (TOML, YAML, JSON) and overrides (table.key=value), in any order.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Short-hands for overrides."""

    preset: Annotated[
        str | None,
        Parameter(
            help="Packaged settings: paper, paper-deep-search, paper-best-entropy, official, tree, tree-grpo, grpo, "
            "dapo, reinforce++, gspo, aepo."
        ),
    ] = None
    set: Annotated[tuple[str, ...], Parameter(negative="", help="One more override, table.key=value.")] = ()
    model: Annotated[str | None, Parameter(help="model.path: pocket, smollm2, a folder or a hub name.")] = None
    name: Annotated[str | None, Parameter(help="run.name")] = None
    seed: Annotated[int | None, Parameter(help="run.seed")] = None


def resolve(configs: Sequence[str], options: Options, *more: str) -> Resolved:
    """The configuration of a command line. `more`: overrides that the command itself adds, the strongest."""
    files = [one for one in configs if not is_override(one)]
    shorthands = {"model.path": options.model, "run.name": options.name, "run.seed": options.seed}
    overrides = [one for one in configs if is_override(one)] + list(options.set)
    overrides += [f"{key}={value}" for key, value in shorthands.items() if value is not None]
    return load(files, [*overrides, *more], preset=options.preset)


def is_override(text: str) -> bool:
    """`a.b=c`; a path may hold an equals sign further on, but its first part then holds a slash."""
    name, equals, _ = text.partition("=")
    return bool(equals) and "/" not in name
