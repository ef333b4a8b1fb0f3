"""Our configuration as verl's Hydra overrides, each with the key of ours that it came from.

Three things can happen to a setting. It has a counterpart in verl and is translated. It is read inside verl by code of
ours, and travels in the key `arpo.config` (`TRAVELS`): dialect, tools, branching, reward and credit are the same code
there as here. Or it has no counterpart: then it is named with the reason (`arpo.verl.uncarried`), and where leaving it
out would change the algorithm it is refused. Together the three cover every setting, so that none is lost in silence.

Nothing here imports verl: a translation can be read, tested and printed on any machine. The names are those of verl
0.9.1, `verl/trainer/config/_generated_ppo_trainer.yaml`; `tests/verl` composes them with the real Hydra.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.config.schema import Config
from arpo.credit.settings import GrpoCredit, SoftCredit
from arpo.errors import ConfigError
from arpo.verl.hydra import quoted_json, text_of

MANAGER = "arpo.verl.manager.ArpoLoopManager"
TRAVELS = (
    *("protocol", "tools", "entropy", "reward", "credit"),
    *("rollout.initial", "rollout.branches", "rollout.max_calls", "rollout.max_result_tokens", "rollout.branching"),
    *("rollout.budget", "rollout.share_calls"),
)
"""Tables and keys that our code inside verl reads from `arpo.config`."""


@dataclass(frozen=True, slots=True)
class Override:
    """One `key=value` of Hydra's. `origin`: the keys of ours that it says the same as, or who else wants it."""

    key: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """As Hydra reads it, before a shell's own quoting. ConfigError naming the origin if it cannot be said."""
        try:
            return f"{self.key}={text_of(self.value)}"
        except ConfigError as error:
            raise ConfigError(f"{self.origin}: {error}") from error


@dataclass(frozen=True, slots=True)
class Travelling(Override):
    """Our whole configuration: a JSON text, quoted once."""

    @property
    def text(self) -> str:
        return f"{self.key}={quoted_json(self.value)}"


@dataclass(frozen=True, slots=True)
class Uncarried:
    """Keys of ours that have no counterpart in verl, and why that is so."""

    keys: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs and what it reads. `longest_prompt`: tokens of the longest prompt of either file. `heldout`:
    None if nothing is evaluated. `cpus`: logical CPUs that a local Ray is told it has; None: Ray's own count."""

    folder: Path
    train: Path
    heldout: Path | None
    longest_prompt: int
    gpus: int = 8
    nodes: int = 1
    cpus: int | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """What verl is told, in the order of its own tables, and what it is not."""

    overrides: tuple[Override, ...]
    uncarried: tuple[Uncarried, ...]


def translate(config: Config, place: Place) -> Translation:
    """Raises ConfigError naming every key that would silently change the algorithm, all at once."""
    from arpo.verl.actor import actor, algorithm
    from arpo.verl.sampler import data, policy, rollout
    from arpo.verl.uncarried import refusals, uncarried

    if wrong := refusals(config, place.gpus * place.nodes):
        raise ConfigError("\n".join(wrong))
    parts = (policy(config), data(config, place), rollout(config, place), actor(config, place), algorithm(config))
    listed = [override for part in (*parts, trainer(config, place), _ours(config)) for override in part]
    for override in listed:
        _ = override.text  # what cannot be said is refused here, not on the way to the shell
    return Translation(tuple(listed), uncarried(config))


def is_stock(config: Config) -> bool:
    """Whether verl's own GRPO over sessions is the configured credit: its epsilon is 1e-6, its copies all count, and
    its advantages meet an aggregation that verl has."""
    credit = config.credit
    own = isinstance(credit, SoftCredit | GrpoCredit) and credit == type(credit)()
    return own and config.loss.aggregation != "group_sum"


def trainer(config: Config, place: Place) -> Sequence[Override]:
    """The loop: how long, when it saves and looks, what it is called."""
    run, train = config.run, config.train
    mode = "sync" if is_stock(config) else "arpo"
    listed = [
        Override("trainer.use_v1", True, "the launcher"),
        Override("trainer.v1.trainer_mode", mode, "credit"),
        Override("trainer.nnodes", place.nodes, "--nodes"),
        Override("trainer.n_gpus_per_node", place.gpus, "--gpus"),
        Override("trainer.total_training_steps", train.steps, "train.steps"),
        Override("trainer.total_epochs", train.steps, "train.steps"),
        Override("trainer.save_freq", train.checkpoint_every, "train.checkpoint_every"),
        Override("trainer.max_actor_ckpt_to_keep", train.keep_checkpoints, "train.keep_checkpoints"),
        Override("trainer.test_freq", train.eval_every or -1, "train.eval_every"),
        Override("trainer.val_before_train", False, "train.eval_every"),
        Override("trainer.resume_mode", "auto" if run.resume else "disable", "run.resume, run.overwrite"),
        Override("trainer.project_name", "arpo", "the launcher"),
        Override("trainer.experiment_name", run.name, "run.name"),
        Override("trainer.default_local_dir", str(place.folder / "checkpoints"), "run.out, run.name"),
        Override("trainer.logger", ["console", *train.trackers], "train.trackers"),
        Override("hydra.run.dir", str(place.folder / "hydra"), "run.out, run.name"),
    ]
    if place.cpus is not None:
        listed += [Override("ray_kwargs.ray_init.num_cpus", place.cpus, "the launcher: TransferQueue waits for CPUs")]
    return listed


def _ours(config: Config) -> Sequence[Override]:
    return [
        Override("+actor_rollout_ref.rollout.agent.agent_loop_manager_class", MANAGER, "the launcher"),
        Override("reward.num_workers", 1, "the launcher: our workers score their own leaves"),
        Travelling("+arpo.config", config.model_dump_json(), ", ".join(TRAVELS)),
    ]
