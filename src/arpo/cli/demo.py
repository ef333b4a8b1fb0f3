"""`arpo demo`: the whole thing on built-in facts, with a report."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def demo(
    *overrides: Annotated[str, Parameter(help="Settings as table.key=value, for every command of the demo.")],
    out: Annotated[Path, Parameter(help="The run folder.")] = Path("runs/demo"),
    from_scratch: Annotated[
        bool, Parameter(negative="", help="Make the cold start too, instead of using the packaged one.")
    ] = False,
    resume: Annotated[bool, Parameter(negative="", help="Go on with an interrupted demo.")] = False,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace an earlier demo.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Warnings and errors only.")] = False,
) -> int:
    """Cold start, then GRPO and ARPO at equal budgets, then a report (about 15 minutes on two cores)."""
    from arpo.demo import run

    return run(out, overrides, from_scratch=from_scratch, overwrite=overwrite, resume=resume, quiet=quiet)
