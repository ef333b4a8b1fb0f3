"""`arpo launch`: the same configuration on somebody else's trainer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from arpo.cli.options import Options, resolve
from arpo.errors import ArpoError

if TYPE_CHECKING:
    from arpo.config.load import Resolved
    from arpo.verl.command import Cluster
    from arpo.verl.overrides import Place, Translation
    from arpo.verl.prepare import Ready

Arguments = Annotated[
    str,
    Parameter(
        name="CONFIG",
        allow_leading_hyphen=True,
        help="Config files and overrides (table.key=value) as everywhere; after --, overrides of verl's own.",
    ),
]
app = App(name="launch", help="Run a configuration on an engine for clusters.")


@app.command(end_of_options_delimiter="")
def verl(
    *arguments: Arguments,
    options: Options | None = None,
    config: Annotated[tuple[Path, ...], Parameter(negative="", help="Config file; may be given several times.")] = (),
    gpus: Annotated[int, Parameter(help="GPUs of each node.")] = 8,
    nodes: Annotated[int, Parameter(help="Nodes.")] = 1,
    address: Annotated[
        str | None,
        Parameter(help="An existing Ray: auto, ray://HOST:10001, or http://HOST:8265 (submits a job there)."),
    ] = None,
    resume: Annotated[bool, Parameter(negative="", help="Go on with the run of this name.")] = False,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace the run of this name.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Show the command and end; nothing is written.")] = False,
) -> int:
    """Train on verl (>= 0.9.1): rollout trees inside its agent loop, its FSDP2 and its vLLM.

    Prints verl's overrides, each with the setting that it came from, then runs them. What stands after -- goes to verl
    untouched and wins: arpo launch verl --config same.toml -- trainer.n_gpus_per_node=4. The exit code is verl's.
    """
    from arpo.verl.command import Cluster

    ours, raw = _split(arguments)
    flags = [f"run.{flag}=true" for flag, given in (("resume", resume), ("overwrite", overwrite)) if given]
    resolved = resolve([*map(str, config), *ours], options or Options(), *flags)
    return _verl(resolved, raw, Cluster(address), gpus=gpus, nodes=nodes, dry_run=dry_run)


def _split(arguments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands after `--`, which the parser hands on like any word."""
    listed = list(arguments)
    cut = listed.index("--") if "--" in listed else len(listed)
    for word in listed[:cut]:
        if word.startswith("-"):
            raise ArpoError(f"unknown option {word}; `arpo launch verl --help` lists them, verl's own come after --")
    return listed[:cut], listed[cut + 1 :]


def _verl(resolved: "Resolved", raw: list[str], cluster: "Cluster", *, gpus: int, nodes: int, dry_run: bool) -> int:
    from arpo.train.runfolder import check_folder
    from arpo.verl.launch import check, logical_cpus
    from arpo.verl.overrides import translate
    from arpo.verl.prepare import prepare

    run = resolved.config.run
    folder = (Path(run.out) / run.name).resolve()
    check_folder(folder, resolved.table(), resume=run.resume, overwrite=run.overwrite)
    ready = prepare(resolved.config)
    place = ready.place(folder / "verl", gpus=gpus, nodes=nodes, cpus=logical_cpus(cluster))
    translation = translate(resolved.config, place)
    _say(ready, place, translation, raw, cluster)
    if dry_run:
        return 0
    told = {one.key: one.value for one in translation.overrides}
    mode, name = told["trainer.v1.trainer_mode"], told["actor_rollout_ref.rollout.name"]
    check(cluster, gpus * nodes, mode, name)
    return _start(resolved, ready, place, translation, raw, cluster)


def _say(ready: "Ready", place: "Place", translation: "Translation", raw: list[str], cluster: "Cluster") -> None:
    """The whole output is Bash: what is no command is a comment."""
    from arpo.verl.command import listing

    print(f"# {place.train}: {len(ready.tasks)} training tasks, prompts of up to {ready.longest_prompt} tokens")
    if ready.left_out:
        print(f"# {ready.left_out} tasks have prompts longer than data.max_prompt_tokens and are left out")
    if place.heldout is not None:
        print(f"# {place.heldout}: {len(ready.heldout)} held-out tasks")
    print("\n".join(listing(translation, raw, cluster)), flush=True)


def _start(
    resolved: "Resolved",
    ready: "Ready",
    place: "Place",
    translation: "Translation",
    raw: list[str],
    cluster: "Cluster",
) -> int:
    from arpo.train.runfolder import RunFolder
    from arpo.verl.command import arguments
    from arpo.verl.launch import run

    settings = resolved.config.run
    with RunFolder.open(place.folder.parent, resolved.table(), resume=settings.resume, overwrite=settings.overwrite):
        ready.write(place)
        return run(cluster.command(arguments(translation, raw)), cluster.environment)
