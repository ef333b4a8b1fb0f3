"""A configuration whose weights are a Tinker server's: the connection, and what such a run cannot have.

Engine and learner are two views of one `TinkerService`, which stands where other policies have their model.
"""

from typing import Any

from arpo.config.schema import Config
from arpo.engine.settings import TinkerSettings
from arpo.errors import ConfigError
from arpo.seeds import derive


def is_remote(config: Config) -> bool:
    """True if a Tinker server holds and trains the weights."""
    return isinstance(config.engine, TinkerSettings)


def connect(config: Config, *, trains: bool) -> Any:
    """The server, asked what it can do (`arpo.engine.tinker_service`).

    Raises ConfigError for a setting that it cannot follow, EngineDownError if it does not answer.
    """
    from arpo.engine.tinker_service import TinkerService

    engine = config.engine
    assert isinstance(engine, TinkerSettings)
    refuse(config, trains=trains)
    return TinkerService(engine, config.model.path, seed=derive(config.run.seed, "lora"))


def refuse(config: Config, *, trains: bool) -> None:
    """ConfigError, naming the key, for what no Tinker server does; asks nobody."""
    engine = config.engine
    assert isinstance(engine, TinkerSettings)
    if config.model.lora is not None:
        raise ConfigError(
            'model.lora is for weights in this process; with engine.type = "tinker" the server has the adapter: set '
            "engine.rank and leave model.lora out"
        )
    if not trains:
        return
    if engine.logprobs == "any":
        raise ConfigError('engine.logprobs = "any" is for evaluation; training needs "whole"')
    if engine.weights is not None:
        raise ConfigError(
            f"engine.weights = {engine.weights!r} is what to sample from without training; leave it out (a run goes on "
            "from its own checkpoint with --resume)"
        )
    if config.rollout.temperature != 1:
        raise ConfigError(
            f"rollout.temperature = {config.rollout.temperature:g}: a Tinker server trains at temperature 1 whatever "
            "it sampled at, so no importance ratio would be right; set it to 1"
        )
    if config.rollout.top_p < 1:
        raise ConfigError(
            f"rollout.top_p = {config.rollout.top_p:g}: whether a Tinker server's log-probs are those before or after "
            "the cut is nowhere said; set it to 1"
        )


def refuse_processes(config: Config, size: int) -> None:
    """ConfigError if several processes were started to train what a server trains."""
    if is_remote(config) and size > 1:
        raise ConfigError(
            f'engine.type = "tinker": the server trains, so {size} processes here have nothing to share; start one'
        )


def build_remote_learner(config: Config, service: Any, total_updates: int) -> Any:
    """The learner at that server. ConfigError for a loss or an optimiser that it cannot follow."""
    from arpo.learn.tinker import TinkerLearner

    return TinkerLearner(service, config.loss, config.optim, total_updates=total_updates)
