"""What a launcher has started, held to what the configuration was written for."""

import copy
import os
from typing import Any

from arpo.config.schema import Config
from arpo.engine.publishing import dealt
from arpo.engine.settings import OpenAISettings, VllmSettings
from arpo.errors import ConfigError
from arpo.train.publishing import Twin
from arpo.train.team import Team, join, launched


def build_team(config: Config) -> Team:
    """The processes that a launcher has started, connected. To be called before anything large is built.

    ConfigError if they are not what the configuration was written for, or have nothing to do.
    """
    from arpo.learn.devices import is_sharded

    train, size = config.train, launched()[1]
    _refuse_lone_launch()
    if train.processes is not None and train.processes != size:
        raise ConfigError(
            f"train.processes = {train.processes}, but this is a run of {size}; start it with accelerate launch "
            f"--num_processes {train.processes} -m arpo.train CONFIG, or set train.processes"
        )
    check_share(config, size)
    if size > 1 and isinstance(config.engine, VllmSettings):
        raise ConfigError(
            'engine.type = "vllm" is one engine in one process; start servers with `vllm serve`, one per device or '
            'fewer, and set engine.type = "openai" with publish = "vllm", base_url and replicas'
        )
    accelerator = build_accelerator(config)
    sharded = accelerator is not None and is_sharded(accelerator)
    if train.sharded is not None and train.sharded != sharded:
        wanted = "with --use_fsdp --fsdp_version 2" if train.sharded else "without FSDP"
        raise ConfigError(
            f"train.sharded = {str(train.sharded).lower()}, but accelerate was set up otherwise; start it {wanted}, or "
            "set train.sharded"
        )
    return join(accelerator)


def check_share(config: Config, size: int) -> None:
    """ConfigError if some of `size` processes would sample nothing, or some server be asked by nobody."""
    prompts = config.train.prompts
    if size > prompts:
        raise ConfigError(
            f"train.prompts = {prompts} leaves some of {size} processes without a group; raise it, or start fewer"
        )
    if isinstance(config.engine, OpenAISettings):
        dealt(config.engine, 0, size)


def _refuse_lone_launch() -> None:
    """accelerate's launcher for CPUs knows MPI alone; without it there is one process whatever was asked for.

    It leaves where several would meet only if several were asked for.
    """
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            "accelerate launch --cpu starts one process, whatever --num_processes says; start several with --multi_gpu "
            "and model.device=cpu, also where there is no GPU"
        )


def build_accelerator(config: Config) -> Any:
    """An `accelerate.Accelerator` if a launcher has started several processes, else None.

    To be built before the model: it decides which device "cuda" means in this process. ConfigError for what the learner
    does not have.
    """
    if launched()[1] < 2:
        return None
    from accelerate import Accelerator

    from arpo.engine.models import pick_device
    from arpo.learn.devices import check

    accelerator = Accelerator(cpu=pick_device(config.model.device).type == "cpu")
    check(accelerator)
    return accelerator


def twin_of(config: Config, model: Any, team: Team) -> Twin | None:
    """The whole copy of a model that the learner will cut, None where it does not; see `arpo.train.publishing`."""
    from arpo.engine.registry import needs_module
    from arpo.learn.devices import is_sharded

    if team.size == 1 or not is_sharded(team.accelerator):
        return None
    if needs_module(config.engine):
        return Twin(copy.deepcopy(model))
    return Twin(copy.deepcopy(model).cpu() if team.first else None)
