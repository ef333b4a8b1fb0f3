"""A comparison from its plan to its report; what is done is not done again."""

import importlib.resources
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from arpo.compare.figures import Curve
from arpo.compare.plan import Plan, make_plan, run_name, starting_point, training
from arpo.compare.report import write
from arpo.errors import ConfigError, DataError
from arpo.evaluate.store import load
from arpo.jobs import TRAINING_ENDED
from arpo.jobs import run as run_jobs
from arpo.train.progress import Reporter
from arpo.train.runfolder import read_rows

METHODS = ("grpo", "dapo", "reinforce++", "paper", "tree")
ENVIRONMENT = "environment.toml"


def run(
    out: Path,
    config: str | None = None,
    methods: Sequence[str] = METHODS,
    *,
    seeds: int = 5,
    overrides: Sequence[str] = (),
    at_once: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Train every method with every seed, and write `compare.json`, `compare.md` and `compare.svg` into `out`.

    The environment is copied into `out`, so that a comparison goes on with what it began with. Seeds come one after the
    other, all methods of one seed together: what an interrupted comparison has is a smaller whole one. The exit code.
    """
    source = Path(config) if config else Path(str(importlib.resources.files("arpo"))) / "assets" / "compare.toml"
    make_plan(str(source), methods, seeds, overrides)  # a mistake is said before anything is written
    _claim(out, source, resume=resume, overwrite=overwrite)
    plan = make_plan(str(out / ENVIRONMENT), methods, seeds, overrides)
    jobs = [starting_point(plan, out)] + [training(plan, arm, seed, out) for seed in plan.seeds for arm in plan.arms]
    with Reporter("compare", quiet=quiet) as reporter:
        code = run_jobs(jobs, reporter, at_once or os.cpu_count() or 1)
        whole = [seed for seed in plan.seeds if all(_ended(out, run_name(arm, seed)) for arm in plan.arms)]
        if len(whole) > 1:
            write(out, plan, _curves(plan, whole, out), whole)
            reporter.say(f"{len(whole)} seeds of {len(plan.arms)} methods: {out / 'compare.md'}")
        if code:
            reporter.warn(f"stopped; go on with the same command and --resume (--out {out})")
    return code


def _claim(out: Path, source: Path, *, resume: bool, overwrite: bool) -> None:
    marker = out / ENVIRONMENT
    if out.exists() and any(out.iterdir()):
        if not marker.exists():
            raise ConfigError(f"{out} exists and is no comparison's folder; it is left alone, choose another --out")
        if not (resume or overwrite):
            raise ConfigError(
                f"{out} exists: go on with --resume, replace it with --overwrite, or choose another --out"
            )
        if resume and marker.read_bytes() != source.read_bytes():
            raise ConfigError(f"{marker} is not {source}: runs of two environments do not compare; use another --out")
        if overwrite:
            shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    marker.write_bytes(source.read_bytes())


def _ended(out: Path, name: str) -> bool:
    return (out / name / TRAINING_ENDED).exists()


def _curves(plan: Plan, seeds: Sequence[int], out: Path) -> dict[str, list[Curve]]:
    start = load(out / "start").accuracy
    return {arm.name: [_curve(out / run_name(arm, seed), start) for seed in seeds] for arm in plan.arms}


def _curve(folder: Path, start: float) -> Curve:
    """Every evaluation of a run, behind the one that all share."""
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "heldout/accuracy" in row]
    if not rows:
        raise DataError(f"{folder}: the run ended without an evaluation; see train.eval_every")
    columns = [[row[key] for row in rows] for key in ("num_tokens", "num_tool_calls", "heldout/accuracy")]
    return Curve((0.0, *columns[0]), (0.0, *columns[1]), (start, *columns[2]))
