"""The main job, end to end: a cold start, GRPO and ARPO from it at equal token budgets, and a report.

It only runs this package's own commands, one process of one thread per core, and prints them, so that every figure of
the report can be made again by hand:

    cold start   `arpo sft --pocket` (or the packaged result of that command)
    measure      `arpo eval` of the cold start and of the clean reference
    train        `arpo train` twice, side by side: the same settings but for branching and credit
    measure      `arpo eval` of both results on the same held-out questions

What is done is not done again: `arpo demo --resume` goes on where an interrupted demo stopped.
"""

import importlib.resources
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo.errors import ConfigError
from arpo.evaluate.store import FIGURES
from arpo.jobs import TRAINING_ENDED, Job, JobError
from arpo.jobs import run as run_jobs
from arpo.train.progress import Reporter

GRPO = ("rollout.branching.type=none", "rollout.initial=8", "credit.type=grpo")
"""What makes ARPO's configuration GRPO's: the whole group starts from the prompt, nothing is kept for branches."""
PACKAGED = {"cold_start": "pocket", "clean_cold_start": "pocket-clean"}
TRAINED = ("grpo", "arpo")


def run(
    out: Path,
    overrides: Sequence[str] = (),
    *,
    from_scratch: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
) -> int:
    """Run the demo in the folder `out`; the exit code. `overrides` (key=value) apply to every command.

    Raises ConfigError if `out` exists and neither flag is given, JobError if a command fails.
    """
    begin = time.monotonic()
    _claim(out, overwrite=overwrite, resume=resume)
    with Reporter("demo", quiet=quiet) as reporter:
        policies = _cold_start(out, reporter) if from_scratch else PACKAGED
        more = tuple(overrides)
        code = run_jobs([_evaluation(out, name, policy, more) for name, policy in policies.items()], reporter)
        code = code or run_jobs([_training(out, name, policies["cold_start"], more) for name in TRAINED], reporter)
        if code:
            reporter.warn(f"stopped; go on with: arpo demo --resume --out {out}")
            return code
        code = run_jobs([_evaluation(out, name, str(_newest(out / name)), more) for name in TRAINED], reporter)
        if code:
            return code
        from arpo.view.experiment import write

        summary = write(out, seconds=time.monotonic() - begin)
        for name in ("cold_start", *TRAINED):
            found = summary[name]
            low, high = found["ci95"]
            reporter.say(f"{name}: held-out accuracy {found['heldout_accuracy']:.3f} [{low:.3f}, {high:.3f}]")
        reporter.say(f"report: {out / 'report.html'} ({time.monotonic() - begin:.0f} s)")
    return 0


def _claim(out: Path, *, overwrite: bool, resume: bool) -> None:
    """Make the folder, or decide what happens to one that is there."""
    marker = out / "demo.toml"
    if out.exists() and any(out.iterdir()):
        if not (overwrite or resume):
            raise ConfigError(
                f"{out} exists: go on with --resume, replace it with --overwrite, or choose another --out"
            )
        if not marker.exists():
            raise ConfigError(f"{out} exists and is no demo's folder; it is left alone, choose another --out")
        if overwrite:
            shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    marker.write_bytes((importlib.resources.files("arpo") / "assets" / "demo.toml").read_bytes())


def _cold_start(out: Path, reporter: Reporter) -> Mapping[str, str]:
    """Both cold starts made here, on all cores."""
    from arpo.train.cold_start import CLEAN, VARIED, cold_start_pocket

    folder = out / "cold_start"
    if not (folder / VARIED).exists():
        reporter.say("cold start from random weights: expert demonstrations, then varied strategies")
        cold_start_pocket(folder)
    return {"cold_start": str(folder / VARIED), "clean_cold_start": str(folder / CLEAN)}


def _evaluation(out: Path, name: str, policy: str, overrides: tuple[str, ...]) -> Job:
    folder = out / "evaluations" / name
    arguments = ("eval", str(out / "demo.toml"), *overrides, "--model", policy, "--out", str(folder), "--quiet")
    return Job(arguments, folder / FIGURES)


def _training(out: Path, name: str, start: str, overrides: tuple[str, ...]) -> Job:
    changes = (f"run.out={out}", f"run.name={name}", *overrides, *(GRPO if name == "grpo" else ()))
    arguments = ("train", str(out / "demo.toml"), *changes, "--model", start, "--resume")
    return Job(arguments, out / name / TRAINING_ENDED)


def _newest(run_folder: Path) -> Path:
    """The last checkpoint of a finished run."""
    from arpo.learn.checkpoint import load_latest

    found = load_latest(run_folder / "checkpoints")
    if found is None:
        raise JobError(f"{run_folder} holds no checkpoint although its training ended; start over with --overwrite")
    return found[1]
