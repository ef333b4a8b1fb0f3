"""`arpo export`: a run's policy as an ordinary model folder."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def export(
    *,
    run: Annotated[Path, Parameter(help="The run folder, such as runs/run.")],
    out: Annotated[Path, Parameter(help="Where the model goes; must not exist.")],
    step: Annotated[int | None, Parameter(help="Which checkpoint; the newest whole one by default.")] = None,
    dtype: Annotated[str | None, Parameter(help="Precision of the weights; the run's own by default.")] = None,
) -> int:
    """Write the policy of a checkpoint in Hugging Face layout, an adapter merged into its base.

    The folder loads with --model and with any program that reads transformers models.
    """
    from arpo.train.export import export as write

    print(write(run, out, step=step, dtype=dtype))
    return 0
