"""`arpo train`: reinforcement learning with the resolved configuration."""

import json as codec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from arpo.cli.options import Configs, Options, resolve
from arpo.errors import ArpoError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arpo.config.load import Resolved
    from arpo.train.loop import Setup


def train(
    *config: Configs,
    options: Options | None = None,
    resume: Annotated[bool, Parameter(negative="", help="Go on with the run of this name.")] = False,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace the run of this name.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Warnings and errors only.")] = False,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Check everything but the weights, tell what a run would take, and end.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="With --dry-run: what was found as JSON.")] = False,
) -> int:
    """Train a policy; results go to the run folder run.out/run.name.

    Ctrl-C once finishes the step and saves, twice stops at once. In several processes: accelerate launch -m arpo.train
    (docs/devices.md). With --dry-run the exit code is 2 where training would
    refuse something, 1 where not everything could be checked from here, else 0.
    """
    flags = [f"run.{flag}=true" for flag, given in (("resume", resume), ("overwrite", overwrite)) if given]
    resolved = resolve(config, options or Options(), *flags)
    if dry_run:
        return _dry_run(resolved, json)
    if json:
        raise ArpoError("--json goes with --dry-run; the figures of a run are in its metrics.jsonl")
    return _train(resolved, quiet)


def _dry_run(resolved: "Resolved", json: bool) -> int:
    from arpo.config.dry_run import examine
    from arpo.config.dry_run_text import lines

    found = examine(resolved)
    print(codec.dumps(found.to_dict(), indent=2) if json else "\n".join(lines(found)))
    if not json and (resolved.config.train.processes or 1) > 1:
        print("\n".join(_on_paper(resolved, with_memory=found.memory is None)))
    return found.exit_code


def _on_paper(resolved: "Resolved", *, with_memory: bool) -> "Iterator[str]":
    """Seconds and tokens per second of a step, for the devices that `arpo plan` assumes if it is not told."""
    from arpo.cli.plan import Hardware, Job
    from arpo.plan.estimate import plan
    from arpo.plan.text import lines

    hardware = Hardware()
    ask = Job().ask(hardware, resolved.config.train.processes or 1)
    yield "\nA step on paper (arpo plan, which takes other hardware):"
    try:
        tools = bool(resolved.config.tools)
        found = plan(resolved.config, ask, hardware.device(), hardware.use(), has_tools=tools, with_memory=with_memory)
    except ArpoError as error:
        yield f"not known: {error}"
    else:
        yield from lines(found)


def _train(resolved: "Resolved", quiet: bool) -> int:
    from arpo.config.tool_list import facts
    from arpo.config.wire import build_plan, build_setup, build_team
    from arpo.train.loop import train as run
    from arpo.train.progress import Reporter
    from arpo.train.runfolder import RunFolder
    from arpo.train.team import launched

    settings, mute = resolved.config.run, launched()[0] > 0
    path = Path(settings.out) / settings.name

    def opened(setup: "Setup") -> RunFolder:
        if not setup.team.first:
            return RunFolder(path)
        return RunFolder.open(
            path,
            resolved.table(),
            resume=settings.resume,
            overwrite=settings.overwrite,
            tools={tool.name: facts(tool) for tool in setup.agent.toolbox.tools},
            reward=setup.scorer.card(),
        )

    team = build_team(resolved.config)
    with Reporter(settings.name, quiet=quiet, mute=mute) as reporter, team.together():
        setup = build_setup(resolved.config, reporter.warn, team)
        with opened(setup) as folder:
            team.wait()  # until it is there
            result = run(setup, build_plan(resolved.config), folder, reporter)
        reporter.say(f"after step {result.position.step}: {path}")
    return result.exit_code
