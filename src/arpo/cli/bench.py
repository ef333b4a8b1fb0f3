"""`arpo bench`: what the policy update costs here."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Console

if TYPE_CHECKING:
    from arpo.bench.rows import UpdateRow

app = App(name="bench", help="Measure this machine on this library's own work.")


@app.command
def update(
    *,
    model: Annotated[str, Parameter(help="Names or folders of models, comma-separated.")] = "pocket,smollm2",
    shape: Annotated[
        str | None,
        Parameter(help="prompt+response@where, comma-separated: 300+600@1/2, @root, @mixed. Default: a preset."),
    ] = None,
    preset: Annotated[str, Parameter(help="quick (minutes) or full (an hour on two cores).")] = "quick",
    group: Annotated[str, Parameter(help="Trajectories from the prompt + branches.")] = "8+8",
    rounds: Annotated[int | None, Parameter(help="Times that each form is timed. Default: by model, 3 or 2.")] = None,
    micro_tokens: Annotated[
        int | None, Parameter(help="Tokens of one forward pass, for all forms. Default: by model.")
    ] = None,
    memory: Annotated[bool, Parameter(help="Measure peak memory too.")] = True,
    device: Annotated[str, Parameter(help="auto, cpu, cuda, ...")] = "auto",
    dtype: Annotated[str, Parameter(help="Of the weights: float32, bfloat16, ...")] = "float32",
    attention: Annotated[
        str | None, Parameter(help="Over trees: chains, flex or dense. Default: the device's best.")
    ] = None,
    json: Annotated[Path | None, Parameter(help="Write the figures here, too.")] = None,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress.")] = False,
) -> int:
    """Time the gradient on trees against padded rows and against trajectories back to back, side by side."""
    from arpo.bench.measure import Setting, measure
    from arpo.bench.presets import attention_form, budget, repeats, select
    from arpo.bench.report import render, write_json

    form = attention_form(attention)
    say = (lambda _: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    rows: list[UpdateRow] = []
    for name, shapes in select(model, shape, preset, group):
        tokens, times = budget(name, micro_tokens), repeats(name, rounds)
        setting = Setting(name, device, dtype, tokens, times, form, memory)
        rows += measure(setting, shapes, say)
    Console().print(render(rows))
    if json is not None:
        write_json(rows, json)
    return 0
