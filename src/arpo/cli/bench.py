"""`arpo bench`: what this library's own work costs here."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Console

if TYPE_CHECKING:
    from arpo.bench.rollout_rows import RolloutRow
    from arpo.bench.rows import UpdateRow

app = App(name="bench", help="Measure this machine on this library's own work.")

Models = Annotated[str, Parameter(help="Names or folders of models, comma-separated.")]
Rounds = Annotated[int | None, Parameter(help="Times that each form is timed. Default: by model.")]
Memory = Annotated[bool, Parameter(help="Measure peak memory too.")]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, ...")]
Dtype = Annotated[str, Parameter(help="Of the weights: float32, bfloat16, ...")]
Json = Annotated[Path | None, Parameter(help="Write the figures here, too.")]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress.")]


@app.command
def update(
    *,
    model: Models = "pocket,smollm2",
    shape: Annotated[
        str | None,
        Parameter(help="prompt+response@where, comma-separated: 300+600@1/2, @root, @mixed. Default: a preset."),
    ] = None,
    preset: Annotated[str, Parameter(help="quick (minutes) or full (an hour on two cores).")] = "quick",
    group: Annotated[str, Parameter(help="Trajectories from the prompt + branches.")] = "8+8",
    rounds: Rounds = None,
    micro_tokens: Annotated[
        int | None, Parameter(help="Tokens of one forward pass, for all forms. Default: by model.")
    ] = None,
    memory: Memory = True,
    device: Device = "auto",
    dtype: Dtype = "float32",
    attention: Annotated[
        str | None, Parameter(help="Over trees: chains, flex or dense. Default: the device's best.")
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Time the gradient on trees against padded rows and against trajectories back to back, side by side."""
    from arpo.bench.measure import Setting, measure
    from arpo.bench.presets import attention_form, budget, repeats, select
    from arpo.bench.report import render, write_json

    form = attention_form(attention)
    rows: list[UpdateRow] = []
    for name, shapes in select(model, shape, preset, group):
        tokens, times = budget(name, micro_tokens), repeats(name, rounds)
        setting = Setting(name, device, dtype, tokens, times, form, memory)
        rows += measure(setting, shapes, _say(quiet))
    Console().print(render(rows))
    if json is not None:
        write_json(rows, json)
    return 0


@app.command
def rollout(
    *,
    model: Models = "pocket,smollm2",
    tools: Annotated[
        str | None, Parameter(help="Latencies, comma-separated: 0, 50ms, heavy (log-normal). Default: a preset.")
    ] = None,
    preset: Annotated[str, Parameter(help="quick (ten minutes on two cores) or full.")] = "quick",
    prompts: Annotated[int | None, Parameter(help="Of one run. Default: by model.")] = None,
    group: Annotated[str | None, Parameter(help="Trajectories from the prompt + branches, like 8+8.")] = None,
    max_tokens: Annotated[int | None, Parameter(help="Of a response.")] = None,
    rounds: Rounds = None,
    versus: Annotated[str | None, Parameter(help="lockstep, generate. Default: both.")] = None,
    in_flight: Annotated[
        int | None, Parameter(help="Prompts at once where the idle share of a long run is measured.")
    ] = None,
    memory: Memory = True,
    device: Device = "auto",
    dtype: Dtype = "float32",
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Time rollouts with tools against lock-step rounds and against transformers' generate, side by side."""
    from arpo.bench.report import write_json
    from arpo.bench.rollout import measure_rollouts
    from arpo.bench.rollout_presets import model_names, setting, size
    from arpo.bench.rollout_report import headline, render
    from arpo.config.bench import opened_subject

    changes = {"tools": tools, "prompts": prompts, "group": group, "max_tokens": max_tokens, "rounds": rounds}
    own = {name: size(name, preset, **changes, in_flight=in_flight) for name in model_names(model)}
    settings = {name: setting(one, versus, memory) for name, one in own.items()}
    rows: list[RolloutRow] = []
    say = _say(quiet)
    for name, one in settings.items():
        with opened_subject(name, own[name], tasks=one.tasks, device=device, dtype=dtype) as subject:
            for row in measure_rollouts(subject, one, say):
                say(headline(row))
                rows.append(row)
                if json is not None:
                    write_json(rows, json)  # after every row: who stops a long run keeps what it has measured
    Console().print(render(rows))
    return 0


@app.command
def tools(
    *,
    what: Annotated[str, Parameter(help="sandbox, search, comma-separated.")] = "sandbox,search",
    backends: Annotated[
        str, Parameter(help="Of the sandbox part, comma-separated.")
    ] = "namespace,landlock,monty,bwrap",
    rounds: Annotated[int, Parameter(help="Times that every way to run code is timed.")] = 5,
    calls: Annotated[int, Parameter(help="Of a sandbox per round, alone and again at once.")] = 40,
    slow_calls: Annotated[int, Parameter(help="The same of what starts an interpreter.")] = 6,
    parallel: Annotated[int | None, Parameter(help="Calls at once. Default: as many as cores.")] = None,
    passages: Annotated[int, Parameter(help="In the index.")] = 100_000,
    queries: Annotated[int, Parameter(help="That are asked.")] = 300,
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Time the Python tool's sandboxes against a fresh interpreter per call, and search over a local index."""
    from arpo.bench.tools import SandboxSetting, measure_sandboxes, parts
    from arpo.bench.tools_report import render
    from arpo.bench.tools_search import measure

    wanted, say = parts(what), _say(quiet)
    many = {} if parallel is None else {"parallel": parallel}
    names = tuple(name.strip() for name in backends.split(",") if name.strip())
    setting = SandboxSetting(backends=names, rounds=rounds, calls=calls, slow_calls=slow_calls, **many)
    sandboxes = list(measure_sandboxes(setting, say)) if "sandbox" in wanted else []
    searches = measure(passages=passages, queries=queries, say=say) if "search" in wanted else []
    Console().print(render(sandboxes, searches))
    if json is not None:
        from arpo.bench.report import write_json

        write_json([*sandboxes, *searches], json)
    return 0


def _say(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
