"""`arpo train`: reinforcement learning with the resolved configuration."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from arpo.cli.options import Configs, Options, resolve


def train(
    *config: Configs,
    options: Options | None = None,
    resume: Annotated[bool, Parameter(negative="", help="Go on with the run of this name.")] = False,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace the run of this name.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Warnings and errors only.")] = False,
) -> int:
    """Train a policy; results go to the run folder run.out/run.name.

    Ctrl-C once finishes the step and saves, twice stops at once.
    """
    flags = [f"run.{flag}=true" for flag, given in (("resume", resume), ("overwrite", overwrite)) if given]
    resolved = resolve(config, options or Options(), *flags)

    from arpo.config.tool_list import facts
    from arpo.config.wire import build_plan, build_setup
    from arpo.train.loop import train as run
    from arpo.train.progress import Reporter
    from arpo.train.runfolder import RunFolder

    settings = resolved.config.run
    with Reporter(settings.name, quiet=quiet) as reporter:
        setup = build_setup(resolved.config, reporter.warn)
        path = Path(settings.out) / settings.name
        with RunFolder.open(
            path,
            resolved.table(),
            resume=settings.resume,
            overwrite=settings.overwrite,
            tools={tool.name: facts(tool) for tool in setup.agent.toolbox.tools},
        ) as folder:
            result = run(setup, build_plan(resolved.config), folder, reporter)
        reporter.say(f"after step {result.position.step}: {path}")
    return result.exit_code
