"""Where the bottleneck moves: one thing changed at a time, ours and lock-step rounds on the same trajectories.

The base is a plan's own step. What is changed: the workers behind the tools, how long calls take, the prompts of a
step, how often a branch opens, how much the lengths vary. Each row is one simulation of ours and one of lock-step
rounds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arpo.config.schema import Config
from arpo.plan.estimate import Ask, Plan
from arpo.plan.simulation.run import Outcome, Scene, simulate
from arpo.plan.work import with_share

Say = Callable[[str], None]


def scene_of(plan: Plan, config: Config, ask: Ask, *, spread: float = 0.6, repeat: float = 0.0) -> Scene:
    """The step of a plan, as it would be rolled out. The seed is the configuration's."""
    return Scene(
        rollout=with_share(config.rollout, ask.branch_share).model_copy(update={"concurrency": plan.in_flight}),
        mean=plan.work.trajectory,
        prompts=plan.work.prompts,
        replica=plan.replica,
        replicas=plan.replicas,
        workers=ask.workers,
        mix=ask.mix,
        vocabulary=plan.shape.vocabulary,
        window=config.entropy.window,
        spread=spread,
        repeat=repeat,
        seed=config.run.seed,
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """The same trajectories, ours and in lock-step rounds. `name`: what was changed."""

    name: str
    ours: Outcome
    rounds: Outcome

    @property
    def gain(self) -> float:
        """Seconds of lock-step rounds / ours."""
        return self.rounds.seconds / self.ours.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"name": self.name, "gain": self.gain, "ours": self.ours.to_dict(), "lockstep": self.rounds.to_dict()}


def pair(name: str, scene: Scene) -> Pair:
    """Both ways."""
    return Pair(name, simulate(scene).outcome, simulate(replace(scene, lockstep=True)).outcome)


def sweep(base: Scene, say: Say) -> Iterator[Pair]:
    """The base and its variations, one after the other."""
    for name, scene in variations(base).items():
        say(f"simulating {name}")
        yield pair(name, scene)


def variations(base: Scene) -> Mapping[str, Scene]:
    """By what was changed."""
    found = {"as planned": base}
    for factor in (0.25, 0.5, 2, 4):
        workers = max(round(base.workers * factor), 1)
        found[f"{workers} workers"] = replace(base, workers=workers)
    for factor in (0.1, 4.0):
        found[f"calls {factor:g} times as long"] = replace(base, mix=base.mix.slower(factor))
    for factor in (0.25, 2):
        prompts = max(round(base.prompts * factor), 1)
        rollout = base.rollout.model_copy(update={"concurrency": max(base.rollout.concurrency, prompts)})
        found[f"{prompts} prompts"] = replace(base, prompts=prompts, rollout=rollout)
    if base.rollout.may_branch:
        found["a branch after 25 % of the results"] = replace(base, rollout=with_share(base.rollout, 0.25))
        alone = base.rollout.model_copy(update={"initial": base.rollout.total})
        found["no branches"] = replace(base, rollout=alone)
    found["half of the calls are a sibling's, too"] = replace(base, repeat=0.5)
    found["equal lengths and calls"] = replace(base, spread=0.0)
    return found
