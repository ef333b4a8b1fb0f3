"""`arpo sft`: the cold start, learning from demonstrations."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from arpo.cli.options import Configs, Options, resolve


def sft(
    *config: Configs,
    options: Options | None = None,
    pocket: Annotated[
        bool, Parameter(negative="", help="Make the packaged pocket policies anew, from nothing.")
    ] = False,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace the run of this name.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Warnings and errors only.")] = False,
) -> int:
    """Fine-tune a model on demonstrations (ShareGPT or Alpaca files, or generated ones).

    The model is saved in run.out/run.name/model, in Hugging Face layout; train from it with --model.
    """
    resolved = resolve(config, options or Options(), *(["run.overwrite=true"] if overwrite else []))

    from arpo.train.progress import Reporter
    from arpo.train.runfolder import RunFolder

    settings = resolved.config.run
    path = Path(settings.out) / settings.name
    with Reporter(settings.name, quiet=quiet) as reporter:
        with RunFolder.open(path, resolved.table(), overwrite=settings.overwrite):
            if pocket:
                from arpo.train.cold_start import cold_start_pocket

                saved = list(cold_start_pocket(path))
            else:
                from arpo.config.demonstrations import cold_start

                saved = [cold_start(resolved.config, path / "model", reporter.say)]
        reporter.say(f"saved: {', '.join(map(str, saved))}")
    return 0
