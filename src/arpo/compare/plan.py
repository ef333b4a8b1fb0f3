"""What a comparison runs: the same environment under each method's preset, once per seed.

An environment says what all methods share (policy, data, tools, rate, batch, budget), a preset how a method branches,
credits and clips. The environment is laid over the preset, so what it sets is equal for all; the one thing scaled is
the share of trajectories that start from the prompt, which belongs to the method: N = M * (preset's N / preset's M).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.config.load import Resolved, load
from arpo.config.read import preset_layer, preset_names
from arpo.errors import ConfigError
from arpo.evaluate.store import FIGURES
from arpo.jobs import TRAINING_ENDED, Job


@dataclass(frozen=True)
class Arm:
    """One method: the name of a preset, or a configuration file laid over the environment."""

    name: str
    preset: str | None
    file: str | None
    overrides: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """What makes the environment's command this method's."""
        preset = ("--preset", self.preset) if self.preset else ()
        return (*((self.file,) if self.file else ()), *self.overrides, *preset)


@dataclass(frozen=True)
class Plan:
    """Environment file, overrides for every command, the methods, the seeds."""

    environment: str
    overrides: tuple[str, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]

    def resolved(self, arm: Arm) -> Resolved:
        """The configuration of one method. Raises ConfigError for what does not fit together."""
        files = [self.environment, *([arm.file] if arm.file else [])]
        return load(files, [*self.overrides, *arm.overrides], preset=arm.preset)


def make_plan(environment: str, methods: Sequence[str], seeds: int, overrides: Sequence[str] = ()) -> Plan:
    """The plan for `methods` (presets, or files) with seeds 0 .. `seeds` - 1.

    Raises ConfigError for a method that is neither, for equal names, for fewer than two seeds, and for an environment
    without a token budget or evaluations: nothing could be compared at equal cost.
    """
    if seeds < 2:
        raise ConfigError(f"seeds = {seeds}: an interval over training runs needs two or more")
    total = load([environment], overrides).config.rollout.total
    arms = tuple(_arm(method, total) for method in methods)
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if len(arms) < 2 or twice:
        raise ConfigError(f"the method {twice} is named twice" if twice else "a comparison takes two methods or more")
    plan = Plan(environment, tuple(overrides), arms, tuple(range(seeds)))
    for arm in arms:
        _check(plan.resolved(arm), arm.name)
    return plan


def _arm(method: str, total: int) -> Arm:
    """`total`: the environment's M."""
    if method in preset_names():
        return Arm(method, method, None, _initial(preset_layer(method).values, total))
    if Path(method).is_file():
        return Arm(Path(method).stem, None, method, ())
    raise ConfigError(f"{method!r} is neither a preset ({', '.join(preset_names())}) nor a configuration file")


def _initial(preset: Mapping[str, Any], total: int) -> tuple[str, ...]:
    """N in the environment's group for the preset's share; nothing where the rollout decides it."""
    rollout = preset.get("rollout", {})
    if "initial" not in rollout:
        return ()
    return (f"rollout.initial={max(1, round(total * rollout['initial'] / rollout['total']))}",)


def _check(resolved: Resolved, name: str) -> None:
    train = resolved.config.train
    if train.max_generated_tokens is None or train.eval_every is None:
        raise ConfigError(
            f"{name}: a comparison needs train.max_generated_tokens (where all stop) and train.eval_every (the points "
            "between which equal cost is read off); set both in the environment"
        )


def run_name(arm: Arm, seed: int) -> str:
    """Folder of a run."""
    return f"{arm.name}-seed{seed}"


def training(plan: Plan, arm: Arm, seed: int, out: Path) -> Job:
    """The command that trains one method with one seed."""
    name = run_name(arm, seed)
    shared = (plan.environment, *arm.arguments, *plan.overrides)
    return Job(
        ("train", *shared, f"run.out={out}", f"run.name={name}", f"run.seed={seed}", "--resume"),
        out / name / TRAINING_ENDED,
    )


def starting_point(plan: Plan, out: Path) -> Job:
    """The command that measures the policy that all methods start from, on the questions that all are asked."""
    folder = out / "start"
    tasks = plan.resolved(plan.arms[0]).config.train.eval_tasks
    changes = (*plan.overrides, f"evaluation.tasks={tasks}")
    return Job(("eval", plan.environment, *changes, "--out", str(folder), "--quiet"), folder / FIGURES)
